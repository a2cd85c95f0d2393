# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""More kinds of tools for training: units to convert, signs, enums, optional arguments, queries.

As intents.py; `; ` parts phrasings, names and descriptions. The last field of each is never trained on.
"""

from __future__ import annotations

from demo_model.intents import OBJECT, PERSON, PLACE, TEXT, Intent, Param


def param(key: str, kind: str, names: str, descriptions: str, question: str, choices: str = '', optional: str = '') -> Param:
    """A Param from strings whose parts `; ` separates."""
    return Param(key, kind, tuple(names.split()), tuple(descriptions.split('; ')), question, tuple(choices.split('; ')) if choices else (),
                 tuple(optional.split('; ')) if optional else ())


def intent(key: str, names: str, descriptions: str, params: tuple[Param, ...], commands: str, todo: str, done: str, held: str,
           answer: str = '', value_kind: str = '') -> Intent:
    """An Intent from strings whose parts `; ` separates."""
    return Intent(key, tuple(names.split('; ')), tuple(descriptions.split('; ')), params, tuple(commands.split('; ')), todo, done, tuple(held.split('; ')), answer, value_kind)


SPEED = param('speed', 'decimal', 'speed velocity max_speed v', 'Speed in m/s, optional; Optional speed limit in metres per second', 'How fast?',
              optional='at {speed} m/s; with {speed} m/s; at a speed of {speed} m/s; , speed {speed} m/s; not faster than {speed} m/s')
TIMES = param('times', 'integer', 'times count repeat n repetitions', 'How often; Number of repetitions; How many times', 'How many times?')

MORE_INTENTS: tuple[Intent, ...] = (
    intent('lift', 'set lift; lift height; raise platform; move lift; set mast; platform height', 'Move the lift to a height.; Set the height of the platform.; Raise or lower the mast.',
           (param('height', 'length', 'height level z position target', 'Height above the floor; The height; Target height', 'To which height?'),),
           'raise the (lift|platform|mast) to {height}; move the lift to {height}; lift to {height}; set the platform height to {height}; lower the (lift|platform) to {height}; bring the mast to {height}; put the platform at {height}; I need the lift at {height}; height {height} please',
           'move the lift to {height}', 'moved the lift to {height}', 'have the lift at {height}; let the platform rise to {height}; the mast should stand at {height}'),
    intent('finger', 'set gripper width; open gripper to; gripper width; move fingers; set opening', 'Open the gripper to a width.; Set how far the fingers are apart.',
           (param('width', 'length', 'width opening gap distance size', 'Width between the fingers; Opening; The gap', 'How wide should I open it?'),),
           'open the gripper to {width}; set the gripper to {width}; fingers {width} apart; gripper width {width}; open your fingers {width}; make the gap {width}; open the hand {width} wide; set an opening of {width}',
           'open the gripper to {width}', 'opened the gripper to {width}', 'spread the fingers to {width}; I want a gap of {width}'),
    intent('shift', 'move base; move by; translate; base offset; drive signed; move x', 'Move the base along its axis.; Drive straight by an offset.; Move straight; the sign gives the way.',
           (param('offset', 'signed length', 'x dx offset delta distance amount forward', 'Positive is forward, negative is backward; Negative means back; Signed offset, plus is ahead', 'How far, and which way?'), SPEED),
           'go {offset}; drive {offset}; move {offset}; please move {offset}; roll {offset}; travel {offset}; get {offset}; robot, {offset}', 'move {offset}', 'moved {offset}',
           'proceed {offset}; displace yourself {offset}; I want a move of {offset}'),
    intent('yaw', 'rotate by; yaw; turn signed; set yaw offset; rotate base; turn by', 'Rotate on the spot by a signed angle.; Turn the base; the sign gives the side.',
           (param('yaw', 'signed angle', 'yaw angle theta delta heading rotation', 'Positive is left, negative is right; Counterclockwise is positive; Negative turns right', 'How far, and to which side?'),),
           'turn {yaw}; rotate {yaw}; spin {yaw}; please turn {yaw}; pivot {yaw}; {yaw}; swing {yaw}; twist {yaw}', 'turn {yaw}', 'turned {yaw}', 'swivel {yaw}; a rotation {yaw}; reorient {yaw}'),
    intent('xy', 'go to point; navigate xy; move to pose; goto xy; drive to coordinates', 'Drive to a point of the map.; Go to coordinates x and y in metres.',
           (param('x', 'signed', 'x pos_x east goal_x', 'x in metres; First coordinate', 'Which x?'), param('y', 'signed', 'y pos_y north goal_y', 'y in metres; Second coordinate', 'Which y?'), SPEED),
           'go to x {x}, y {y}; drive to ({x}, {y}); go to the point {x} {y}; navigate to {x}, {y}; move to x={x} y={y}; drive to coordinates {x} and {y}; target {x} / {y}; come to x {x} and y {y}',
           'go to {x}, {y}', 'went to {x}, {y}', 'be at x {x} y {y}; your goal is {x}, {y}; position ({x} {y})'),
    intent('mode', 'set mode; mode; switch mode; drive mode; select profile', 'Switch the driving mode.; Select a mode.', (param('mode', 'choice', 'mode profile name value', 'The mode; Which mode; One of the modes', 'Which mode?', 'eco; normal; sport; silent; manual; automatic; night; day; careful; fast; very slow; indoor; outdoor'),),
           'switch to {mode} mode; {mode} mode; set the mode to {mode}; use the {mode} mode; change to {mode}; go into {mode} mode; activate {mode} mode; mode {mode} please', 'switch to {mode} mode', 'switched to {mode} mode',
           'I prefer the {mode} mode; put yourself in {mode} mode; enable {mode}'),
    intent('floor', 'call elevator; elevator; take lift; ride elevator; go to floor', 'Ride the elevator to a floor.; Send the elevator to a level.', (param('floor', 'integer', 'floor level storey target', 'The floor; Number of the floor', 'Which floor?'),),
           'take the elevator to floor {floor}; go to floor {floor}; ride to level {floor}; elevator to {floor}; bring us to floor {floor}; floor {floor} please; take me to level {floor}; press {floor} in the elevator',
           'go to floor {floor}', 'went to floor {floor}', 'we need to get to floor {floor}; up or down to {floor}, please; select storey {floor}'),
    intent('lock', 'lock door; set lock; door lock; access; lock control', 'Lock or unlock a door.; Control a lock.',
           (param('state', 'choice', 'state action mode what', 'lock or unlock; What to do', 'Should I lock or unlock it?', 'lock; unlock'), param('door', 'place', 'door room name where', 'Which door; The room of the door', 'Which door do you mean?')),
           '{state} {door}; {state} the door of {door}; please {state} {door}; {state} the door to {door}; {door}: {state}; I need you to {state} {door}', '{state} {door}', 'used the lock of {door}', 'make sure to {state} {door}; would you {state} up {door}'),
    intent('patrol', 'patrol; guard; make rounds; patrol area; inspect area', 'Patrol a place some times.; Make rounds in an area.', (PLACE, TIMES),
           'patrol {place} {times} times; do {times} rounds in {place}; guard {place}, {times} rounds; walk through {place} {times} times; {times} rounds of {place}; inspect {place} {times} times; make {times} rounds at {place}',
           'patrol {place} {times} times', 'patrolled {place} {times} times', 'look after {place} with {times} rounds; circle {place} {times} times'),
    intent('undock', 'undock; leave dock; disconnect charger; drive off dock', 'Leave the charging dock.; Drive off the charger.', (),
           'undock; leave the (dock|charger); drive off the dock; get off the charger; unplug yourself; come out of the dock; stop charging and come out; disconnect from the charger', 'leave the dock', 'left the dock', 'detach from the charger; away from the dock with you'),
    intent('diagnose', 'run diagnostics; self test; check system; diagnose; health check', 'Check a part of the robot.; Run a self test.', (param('part', 'choice', 'part component subsystem target what', 'What to check; The component', 'Which part should I check?', 'motors; battery; lidar; camera; arm; network; wheels; gripper; microphone; brakes; front lidar; left wheel'),),
           'check the {part}; test the {part}; run a diagnosis of the {part}; are the {part} ok; is the {part} working; self test {part}; diagnose the {part}; how are the {part} doing; look into the {part}',
           'check the {part}', 'checked the {part}', 'see if the {part} has a fault; go over the {part}; any trouble with the {part}'),
    intent('range', 'get distance; measure distance; range; obstacle distance; read lidar', 'Measure the distance to the next obstacle.; Tell how far the way is free.', (),
           'how far is the (obstacle|wall|next thing); how much room is in front; measure the distance; what does the lidar say; how close is the wall; is the way free; distance to the obstacle', 'measure the distance', 'measured the distance', 'how many metres are free ahead; tell me the clearance', 'The next obstacle is {value} metres away.', 'metres'),
    intent('load', 'get load; read scale; payload; weight on robot; get weight', 'Read the weight that is carried.; Tell the payload in kilograms.', (),
           'how heavy is the load; what do you carry; read the scale; weigh the load; how much weight is on you; payload please; what is the payload', 'read the load', 'read the load', 'tell me how many kilos you carry; what is on your back', 'The load is {value} kilograms.', 'kilograms'),
    intent('beam', 'set brightness; dim light; brightness; headlight; light level', 'Set the brightness of the light.; Dim the headlight.', (param('level', 'percent', 'level brightness percent value intensity', 'In percent; From 0 to 100', 'How bright should it be?'),),
           'set the brightness to {level}; dim the light to {level} percent; brightness {level}; headlight to {level} percent; make the light {level} percent bright; light level {level}%; dim to {level}; put the light at {level} percent',
           'set the brightness to {level} percent', 'set the brightness to {level} percent', 'let it shine with {level} percent; illumination {level}%'),
    intent('roomlight', 'switch light; room light; light switch; set lamp; control light', 'Switch the light of a room.; Turn a lamp on or off.', (param('state', 'choice', 'state action value power', 'on or off; New state', 'On or off?', 'on; off'), param('room', 'place', 'room place zone where lamp', 'Which room; The room', 'In which room?')),
           'turn {state} the light in {room}; switch {state} the lights of {room}; lights {state} in {room}; turn the light {state} in {room}; switch the lamp in {room} {state}; {room}: light {state}; I want the light {state} in {room}',
           'turn the light {state} in {room}', 'turned the light {state} in {room}', 'light {state} for {room}; flip the switch in {room} to {state}'),
    intent('blind', 'set blind; blinds; move shutter; shade; shutter position', 'Move the blinds of a room.; Set a shutter in percent.', (param('room', 'place', 'room window where zone', 'Which room; The window', 'Which room?'), param('level', 'percent', 'level percent position value', 'Percent closed; 0 is open, 100 is closed', 'How far should I close them?')),
           'close the blinds in {room} to {level} percent; blinds of {room} to {level}; set the shutter in {room} at {level} percent; {room} blinds {level} percent; shade {room} to {level}%; move the blinds in {room} to {level} percent',
           'set the blinds in {room} to {level} percent', 'set the blinds in {room} to {level} percent', 'I would like {level} percent shade in {room}; in {room} the shutter goes to {level}'),
    intent('record', 'record video; film; start recording; capture clip; record', 'Record a video of some length.; Film for some time.', (param('length', 'seconds', 'duration length time seconds period', 'Length of the clip; How long; Duration', 'How long should I record?'),),
           'record {length}; film for {length}; record a video of {length}; make a clip of {length}; start recording for {length}; shoot {length} of video; capture {length}; video, {length}', 'record a video', 'recorded a video', 'let the camera run for {length}; I want {length} of footage'),
    intent('rest', 'pause robot; hold; stay; idle for; delay', 'Do nothing for some time.; Stay where you are for a while.', (param('time', 'seconds', 'time duration period t delay how_long', 'How long; Duration; Time to wait', 'How long?'),),
           'wait {time}; stay here for {time}; pause for {time}; hold on for {time}; do nothing for {time}; rest for {time}; stand still for {time}; take a break of {time}; idle {time}', 'wait', 'waited', 'remain there for {time}; be idle for {time}; let {time} pass'),
    intent('beep', 'beep; ring bell; honk; buzzer; play tone', 'Beep some times.; Sound the buzzer.', (TIMES,), 'beep {times} times; honk {times} times; ring {times} times; {times} beeps; sound the buzzer {times} times; make {times} beeps; give {times} beeps', 'beep {times} times', 'beeped {times} times', 'let me hear {times} beeps; buzz {times} times'),
    intent('pose', 'arm pose; move arm to; set posture; go to pose; arm preset', 'Bring the arm into a pose.; Move the arm to a named posture.', (param('pose', 'choice', 'pose name posture preset position', 'The pose; Which pose', 'Which pose?', 'home; rest; ready; folded; stretched; carry; high; low; front; tuck; wave; point; left side; right side'),),
           'bring the arm to the {pose} pose; arm {pose}; move your arm to {pose}; {pose} pose please; put the arm in {pose}; set the arm to {pose}; take the {pose} posture; arm into {pose}', 'move the arm to {pose}', 'moved the arm to {pose}', 'let the arm take the {pose} pose; I want to see the arm in {pose}'),
    intent('look', 'look; turn camera; camera direction; gaze; point head', 'Point the camera in a direction.; Look somewhere.', (param('way', 'choice', 'direction way side where', 'Where to look; The direction', 'Which way should I look?', 'up; down; left; right; ahead; back'),),
           'look {way}; look to the {way}; camera {way}; point the camera {way}; turn your eyes {way}; gaze {way}; watch {way}; head {way}', 'look {way}', 'looked {way}', 'have a look {way}; direct your camera {way}; eyes {way}'),
    intent('count', 'count objects; count; how many; count things', 'Count objects of a kind.; Tell how many there are.', (OBJECT,), 'count {object}; how many of {object} are there; number of {object}; how many {object} do you see; tell me how many {object} there are; count all of {object}',
           'count {object}', 'counted {object}', 'what is the number of {object}; tally {object}', 'I count {value}.', 'count'),
    intent('order', 'order item; request part; buy; order supply; reorder', 'Order some pieces of an item.; Request supplies.', (OBJECT, param('amount', 'integer', 'amount quantity count pieces number', 'How many; Number of pieces', 'How many?')),
           'order {amount} pieces of {object}; we need {amount} times {object}; request {object}, {amount} pieces; buy {amount} of {object}; reorder {object} {amount} times; get {amount} units of {object}', 'order {object}', 'ordered {object}', 'place an order: {amount} x {object}; have {amount} of {object} sent'),
    intent('ring', 'call person; phone; dial; start call; ring up', 'Call a person.; Start a call with somebody.', (PERSON,), 'call {person}; phone {person}; ring {person}; dial {person}; start a call with {person}; get {person} on the line; give {person} a call; I want to talk to {person}', 'call {person}', 'called {person}', 'put me through to {person}; make a phone call to {person}'),
    intent('guide', 'guide person; escort; lead; bring person; show way', 'Lead a person to a place.; Guide somebody.', (PERSON, PLACE), 'guide {person} to {place}; lead {person} to {place}; escort {person} to {place}; bring {person} to {place}; show {person} the way to {place}; take {person} to {place}; {person} wants to go to {place}',
           'guide {person} to {place}', 'guided {person} to {place}', 'help {person} get to {place}; accompany {person} as far as {place}'),
    intent('tag', 'save place; mark position; name location; store waypoint; add landmark', 'Save the position under a name.; Remember this place.', (param('label', 'words', 'name label title id tag', 'Name of the place; The label', 'Under which name?'),),
           'save this place as {label}; call this place {label}; mark this spot as {label}; this place is {label}; remember this position as {label}; store the waypoint {label}; name this location {label}', 'save the place', 'saved the place', 'from now on this spot is {label}; label here: {label}'),
    intent('announce', 'announce; broadcast; proclaim; public address; make announcement', 'Make an announcement with the loudspeaker.; Broadcast a message to everybody.', (TEXT,), 'announce {text}; announce: {text}; tell all: {text}; broadcast: {text}; broadcast that {text}; proclaim {text}; make an announcement: {text}; let all know: {text}; announce to everybody that {text}; over the speaker: {text}',
           'make the announcement', 'made the announcement', 'publish aloud: {text}; everybody has to hear this: {text}'),
    intent('circle', 'drive arc; arc; drive circle; curve', 'Drive an arc.; Drive a curve of a radius.', (param('radius', 'length', 'radius r size', 'The radius; Radius of the arc', 'Which radius?'), param('angle', 'angle', 'angle arc sweep', 'The angle; Length of the arc as an angle', 'Through which angle?')),
           'drive an arc with radius {radius} through {angle}; arc of {angle}, radius {radius}; curve: radius {radius}, {angle}; go {angle} around a circle of radius {radius}; drive a curve of {radius} radius for {angle}', 'drive an arc', 'drove an arc', 'take a bend of {radius} through {angle}; {angle} on a radius of {radius}'),
    intent('dist', 'keep distance; set clearance; safety distance; min distance', 'Set the distance kept to obstacles.; Set the clearance.', (param('gap', 'length', 'clearance distance gap margin', 'The clearance; Distance to keep', 'How much distance should I keep?'),),
           'keep {gap} distance; keep a distance of {gap}; stay {gap} away from things; set the clearance to {gap}; safety distance {gap}; leave {gap} of room; margin {gap}', 'keep {gap} distance', 'set the clearance to {gap}', 'there should be {gap} between you and the walls; hold {gap} clearance'),
    intent('net', 'get wifi; signal strength; network status; check wifi', 'Read the strength of the radio signal.; Tell how good the network is.', (), 'how good is the (network|wifi); check the wifi; signal strength; are you online; how is the connection; read the signal strength', 'read the signal', 'read the signal', 'do you have good reception; what about the radio link', 'The signal is at {value} percent.', 'percent'),
)
