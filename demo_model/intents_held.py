# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Kinds of tools that training never sees, and the places and objects of the evaluation.

Never import this from what draws training dialogues.
"""

from __future__ import annotations

from demo_model.intents import Intent
from demo_model.intents_more import intent, param

HELD_INTENTS: tuple[Intent, ...] = (
    intent('conveyor', 'run conveyor; belt; start belt', 'Run the conveyor belt at a speed.', (param('rate', 'decimal', 'rate belt_speed', 'Belt speed in metres per second', 'How fast should the belt run?'),), 'run the belt at {rate} m/s', 'run the belt', 'ran the belt', 'run the conveyor at {rate} metres per second; the belt should run with {rate} m/s; belt at {rate}'),
    intent('drawer', 'open drawer; pull drawer', 'Open a drawer by its number.', (param('drawer', 'integer', 'drawer slot', 'Number of the drawer', 'Which drawer?'),), 'open drawer {drawer}', 'open drawer {drawer}', 'opened drawer {drawer}', 'open drawer {drawer}; pull out drawer number {drawer}; please open drawer {drawer} for me'),
    intent('spray', 'spray; disinfect', 'Spray disinfectant at a place for some time.', (param('spot', 'place', 'spot zone', 'Where to spray', 'Where should I spray?'), param('time', 'seconds', 'time period', 'How long', 'How long?')), 'spray {spot} for {time}', 'spray {spot}', 'sprayed {spot}', 'spray {spot} for {time}; disinfect {spot}, {time}; I want {spot} sprayed for {time}'),
    intent('hover', 'take off; climb to; hover', 'Take off and hover at a height.', (param('height', 'length', 'height altitude', 'Height above ground', 'How high?'),), 'take off to {height}', 'take off', 'took off', 'take off to {height}; hover at {height}; fly up to {height}'),
    intent('suction', 'set suction; vacuum cup; suction power', 'Set the power of the suction cup.', (param('power', 'percent', 'power strength', 'Power in percent', 'How strong?'),), 'suction {power} percent', 'set the suction', 'set the suction', 'set the suction to {power} percent; suction cup at {power}; suck with {power} percent power'),
    intent('trailer', 'tow; hitch trailer; attach cart', 'Attach a trailer and tow it to a place.', (param('cart', 'object', 'cart trailer', 'Which trailer', 'Which trailer?'), param('goal', 'place', 'goal drop_place', 'Where to tow it', 'Where to?')), 'tow {cart} to {goal}', 'tow {cart}', 'towed {cart}', 'tow {cart} to {goal}; pull {cart} over to {goal}; attach {cart} and take it to {goal}'),
    intent('mow', 'mow; cut grass', 'Mow the grass of an area.', (param('area', 'place', 'area lawn', 'Which area', 'Which area should I mow?'),), 'mow {area}', 'mow {area}', 'mowed {area}', 'mow {area}; cut the grass at {area}; the grass of {area} is too long'),
    intent('calibrate', 'calibrate; zero sensor', 'Calibrate a sensor.', (param('sensor', 'choice', 'sensor device', 'Which sensor', 'Which sensor?', 'gyro; compass; odometry; depth camera; force sensor'),), 'calibrate the {sensor}', 'calibrate the {sensor}', 'calibrated the {sensor}', 'calibrate the {sensor}; zero the {sensor}; the {sensor} needs a calibration'),
    intent('water', 'water plant; irrigate', 'Water a plant.', (param('plant', 'object', 'plant target_plant', 'Which plant', 'Which plant?'),), 'water {plant}', 'water {plant}', 'watered {plant}', 'water {plant}; give {plant} some water; {plant} is dry'),
    intent('humidity', 'get humidity; read hygrometer', 'Read the humidity of the air.', (), 'how humid is it', 'read the humidity', 'read the humidity', 'how humid is it; what is the humidity; read the hygrometer', 'The humidity is {value} percent.', 'percent'),
)
HELD_PLACES = ('the {w} hall', '{w} bay', "{name}'s bench", 'the {w} {w} deck', 'bay {n}', 'the old {w}', 'dock door {n}', '{name} street', 'aisle {l}{n}')
HELD_OBJECTS = ('the {w} crate', "{name}'s {w} box", 'the large {c} {w}', 'pallet {n}', 'the {w} {w} part', 'a {w} tray', 'the small {w}', 'my {w} bag')
HELD_JOINTS = ('thumb', 'left knee', 'the {w} axis', 'axis {n}')
HELD_COLOURS = ('beige', 'crimson', 'navy', 'olive', 'teal', 'maroon', 'indigo', 'amber')
