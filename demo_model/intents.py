# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Other things that robots and agents do with tools: names, arguments, phrasings, sentences.

They teach the model to read declarations instead of reciting the demo robot's. The held-out command
templates of each intent (last field of Intent) are never trained on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Param:
    """One argument: what kind of value, how it may be called and described, how to ask for it."""

    key: str
    kind: str
    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    question: str
    choices: tuple[str, ...] = ()        # of kind 'choice': what may be said
    optional: tuple[str, ...] = ()       # phrases that add it; without them it is left out


@dataclass(frozen=True)
class Intent:
    """One kind of tool. Names and descriptions are lists of words; {key} slots are the arguments."""

    key: str
    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    params: tuple[Param, ...]
    commands: tuple[str, ...]
    todo: str
    done: str
    held: tuple[str, ...]
    answer: str = ''             # for tools that give a value back: {value} is copied from the result
    value_kind: str = ''
    words: tuple[tuple[str, str], ...] = ()  # of made-up kinds: what further slots stand for


def _p(key: str, kind: str, names: str, descriptions: str, question: str) -> Param:
    return Param(key, kind, tuple(names.split()), tuple(descriptions.split('|')), question)


PLACE = _p('place', 'place', 'place location destination room target goal where name spot',
           'Where to go|Name of the place|The destination|Target location|Room or place', 'Where should I go?')
OBJECT = _p('object', 'object', 'object item thing target object_name what name',
            'What to take|Name of the object|The object|Which object', 'Which object do you mean?')
PERSON = _p('person', 'name', 'person name user who recipient contact', 'Who|Name of the person|The person',
            'Whom do you mean?')
TEXT = _p('text', 'text', 'text message content body note sentence', 'The text|What to write|The message',
          'What should the text be?')

INTENTS: tuple[Intent, ...] = (
    Intent('goto', ('navigate to', 'go to', 'drive to', 'goto', 'move to place', 'travel to', 'navigate', 'send robot'),
           ('Drive to a named place.', 'Navigate to a location.', 'Go to a room or place.', 'Send the robot to a place.'), (PLACE,),
           ('go to {place}', 'drive to {place}', 'navigate to {place}', 'head (over |)to {place}', 'move to {place}', 'bring yourself to {place}',
            'come to {place}', 'I need you at {place}', 'travel to {place}', 'get to {place}', 'make your way to {place}', 'go (straight |)to {place}',
            'drive over to {place}', 'run to {place}', 'take yourself to {place}', 'visit {place}', 'go and wait at {place}', 'meet me at {place}'),
           'go to {place}', 'went to {place}',
           ('be at {place}', 'proceed to {place}', 'I want you in {place}', 'your next stop is {place}', 'roll to {place}')),
    Intent('grasp', ('pick up', 'grasp', 'grab object', 'take', 'pick', 'lift object', 'fetch', 'grip'),
           ('Pick up an object.', 'Grasp an object with the gripper.', 'Take an object.', 'Lift a thing from the table.'), (OBJECT,),
           ('pick up {object}', 'grab {object}', 'take {object}', 'grasp {object}', 'lift {object}', 'get {object}', 'pick {object} up', 'get hold of {object}',
            'hold {object}', 'fetch {object}', 'I need {object}', 'collect {object}', 'take {object} from the table', 'use your arm to take {object}'),
           'pick up {object}', 'picked up {object}',
           ('seize {object}', 'raise {object}', 'can I have {object}', 'clutch {object}')),
    Intent('release', ('open gripper', 'release', 'let go', 'drop object', 'release gripper'),
           ('Open the gripper.', 'Let go of what is held.', 'Release the object in the hand.'), (),
           ('let it go', 'open (the|your) gripper', 'release (it|the object|that)', 'drop it', 'open your hand', 'let go of it', 'put it down', 'release your grip'),
           'open the gripper', 'opened the gripper', ('unclench your hand', 'leave it there', 'free the object')),
    Intent('close', ('close gripper', 'shut gripper', 'grip close', 'clamp'), ('Close the gripper.', 'Shut the hand.', 'Clamp the fingers together.'), (),
           ('close (the|your) gripper', 'shut your hand', 'close your hand', 'clamp now', 'make a fist', 'close your fingers'),
           'close the gripper', 'closed the gripper', ('clench your hand', 'squeeze your fingers together')),
    Intent('speed', ('set speed', 'set velocity', 'speed limit', 'set max speed', 'change speed'),
           ('Set the speed limit.', 'Change how fast the robot drives.', 'Set the maximum speed.'),
           (_p('speed', 'decimal', 'speed velocity limit value max_speed mps', 'Speed in metres per second|Metres per second|New limit in m/s',
               'How fast should I drive?'),),
           ('set (the|your) speed to {speed} (metres per second|m/s|meters per second)', 'drive at {speed} (m/s|metres per second)',
            '(limit|change) your speed to {speed} (m/s|metres per second)', 'speed {speed}', 'do not go faster than {speed} (m/s|metres per second)',
            'slow down to {speed} (m/s|metres per second)', 'your speed should be {speed} (m/s|metres per second)', 'use a speed of {speed} m/s'),
           'set the speed to {speed} metres per second', 'set the speed to {speed} metres per second',
           ('cap the speed at {speed} m/s', 'from now on {speed} metres per second', 'move with {speed} m/s')),
    Intent('light', ('set light', 'set led', 'light colour', 'set color', 'led', 'lamp color'),
           ('Set the colour of the light.', 'Change the LED colour.', 'Light the lamp in a colour.'),
           (_p('colour', 'colour', 'color colour light_color value hue', 'The colour|Colour name|Which colour', 'Which colour should it be?'),),
           ('set the (light|led|lamp) to {colour}', 'make the (light|led|lamp) {colour}', 'turn the (light|led|lamp) {colour}', 'change the light to {colour}',
            '(light|lamp|led) {colour}', 'show a {colour} light', 'switch the (led|light) to {colour}', 'shine in {colour}', 'I want a {colour} light'),
           'set the light to {colour}', 'set the light to {colour}', ('glow {colour}', 'paint the lamp {colour}', 'let the led be {colour}')),
    Intent('photo', ('take picture', 'take photo', 'capture image', 'snapshot', 'camera shot'), ('Take a picture.', 'Take a photo with the camera.', 'Capture an image.'), (),
           ('take a (picture|photo|snapshot)', 'take a (picture|photo) of the {w}', 'make a photo', 'photograph this', 'capture an image', 'snap a picture',
            'shoot a photo', 'use your camera now', 'get me a (picture|photo)'),
           'take a picture', 'took a picture', ('record a still image', 'click a photo')),
    Intent('battery', ('get battery', 'battery level', 'battery status', 'read battery', 'charge state'),
           ('Read the battery level.', 'Tell how full the battery is.', 'Get the charge in percent.'), (),
           ('how full is (the|your) battery', 'what is (the|your) battery level', 'check (the|your) battery', 'how much (charge|power|battery) (is left|do you have)',
            'battery level', 'battery status please', 'tell me the battery level', 'are you low on battery', 'do you need to charge', 'read the battery'),
           'read the battery', 'read the battery', ('what percentage is the battery at', 'how long will your battery last'),
           'The battery is at {value} percent.', 'percent'),
    Intent('volume', ('set volume', 'volume', 'speaker volume', 'audio level', 'change volume'),
           ('Set the loudness of the speaker.', 'Change the speaker volume.', 'Set the volume in percent.'),
           (_p('level', 'percent', 'level volume percent value loudness amount', 'Volume in percent|From 0 to 100|Loudness in percent', 'How loud should it be?'),),
           ('set the volume to {level}', '(volume|loudness) {level}', 'change the volume to {level} percent', 'make the speaker {level} percent loud', 'turn the volume to {level}',
            'put the volume at {level}', 'volume to {level} percent', 'I want the volume at {level}', 'set the loudness to {level} percent'),
           'set the volume to {level} percent', 'set the volume to {level} percent', ('loudness should be {level}', 'adjust the sound to {level} percent')),
    Intent('wait', ('wait', 'pause', 'sleep', 'wait seconds', 'hold still'), ('Wait for some time.', 'Do nothing for a while.', 'Pause for a number of seconds.'),
           (_p('seconds', 'integer', 'seconds duration time duration_s secs delay', 'How long, in seconds|Seconds to wait|Number of seconds', 'How many seconds should I wait?'),),
           ('wait (for |){seconds} seconds', 'pause for {seconds} seconds', 'hold still for {seconds} seconds', 'stay here for {seconds} seconds', 'do nothing for {seconds} seconds',
            'rest {seconds} seconds', 'wait {seconds} s', 'stand still {seconds} seconds', 'give me {seconds} seconds'),
           'wait {seconds} seconds', 'waited {seconds} seconds', ('hang on for {seconds} seconds', 'freeze for {seconds} seconds')),
    Intent('follow', ('follow', 'follow person', 'track person', 'go after', 'accompany'), ('Follow a person.', 'Drive behind somebody.', 'Keep close to a person.'), (PERSON,),
           ('follow {person}', 'go with {person}', 'stay close to {person}', 'drive behind {person}', 'go after {person}', 'track {person}', 'accompany {person}',
            'keep up with {person}', 'walk with {person}'),
           'follow {person}', 'followed {person}', ('tag along with {person}', 'stick to {person}')),
    Intent('find', ('find object', 'search', 'look for', 'locate', 'search object', 'detect'), ('Look for an object.', 'Search for a thing.', 'Find out where an object is.'), (OBJECT,),
           ('find {object}', 'look for {object}', 'search for {object}', 'where is {object}', 'locate {object}', 'can you see {object}', 'do you see {object}', 'help me find {object}',
            'I am looking for {object}', 'where did I put {object}'),
           'find {object}', 'found {object}', ('seek {object}', 'any idea where {object} is')),
    Intent('message', ('send message', 'message', 'text person', 'send text', 'notify'), ('Send a message to a person.', 'Write somebody a message.', 'Notify a person.'),
           (PERSON, TEXT),
           ('send {person} the message {text}', 'message {person}: {text}', 'write {person} that {text}', 'text {person} {text}', 'send a message to {person}: {text}',
            'send "{text}" to {person}', 'notify {person} that {text}', 'let {person} know that {text}'),
           'send the message to {person}', 'sent the message to {person}', ('drop {person} a line: {text}', 'forward "{text}" to {person}')),
    Intent('note', ('save note', 'remember', 'add note', 'write down', 'memo', 'store note'), ('Save a note.', 'Remember a text.', 'Write something down.'), (TEXT,),
           ('note that {text}', 'remember that {text}', 'write down: {text}', 'save the note {text}', 'make a note: {text}', 'take a note: {text}', 'write this down: {text}',
            'keep in mind that {text}', 'note: {text}'),
           'save the note', 'saved the note', ('jot down {text}', 'put on record that {text}')),
    Intent('head', ('look at', 'point camera', 'move head', 'set head', 'pan tilt', 'turn head'), ('Turn the head.', 'Move the camera head.', 'Point the head somewhere.'),
           (_p('pan', 'integer', 'pan yaw horizontal pan_deg', 'Pan angle in degrees|Degrees sideways', 'Which pan angle?'),
            _p('tilt', 'integer', 'tilt pitch vertical tilt_deg', 'Tilt angle in degrees|Degrees up', 'Which tilt angle?')),
           ('turn your head to pan {pan} and tilt {tilt}', 'head to pan {pan} tilt {tilt}', 'set the camera to pan {pan}, tilt {tilt}', 'pan {pan}, tilt {tilt}',
            'move your head: pan {pan} degrees, tilt {tilt} degrees', 'tilt {tilt} and pan {pan} please'),
           'move the head', 'moved the head', ('camera at tilt {tilt}, pan {pan}', 'point your head with {pan} degrees pan and {tilt} degrees tilt')),
    Intent('arm', ('move arm', 'set joint', 'rotate joint', 'joint', 'arm joint'), ('Move one joint of the arm.', 'Set a joint angle.', 'Rotate an arm joint.'),
           (_p('joint', 'joint', 'joint joint_name name axis which', 'Which joint|Name of the joint|The joint', 'Which joint do you mean?'),
            _p('angle', 'integer', 'angle degrees value position deg', 'Angle in degrees|Target angle|Degrees', 'To which angle should I move it?')),
           ('move the {joint} to {angle} degrees', 'set the {joint} to {angle} degrees', 'rotate the {joint} to {angle} degrees', 'put the {joint} at {angle}', '{joint} to {angle} degrees',
            'bring the {joint} to {angle}', 'the {joint} should be at {angle} degrees'),
           'move the {joint} to {angle} degrees', 'moved the {joint} to {angle} degrees', ('adjust {joint}: {angle} degrees', 'get the {joint} into {angle} degrees')),
    Intent('heat', ('set temperature', 'thermostat', 'set heating', 'heat room', 'climate'), ('Set the temperature of a room.', 'Change the heating of a room.'),
           (_p('room', 'place', 'room place zone where location', 'Which room|The room', 'In which room?'),
            _p('degrees', 'integer', 'temperature degrees celsius value target', 'Degrees Celsius|Temperature in degrees', 'Which temperature?')),
           ('set {room} to {degrees} degrees', 'heat {room} to {degrees} degrees', 'make it {degrees} degrees in {room}', 'temperature in {room} {degrees}', 'I want {degrees} degrees in {room}',
            'warm {room} up to {degrees} degrees'),
           'set {room} to {degrees} degrees', 'set {room} to {degrees} degrees', ('{degrees} degrees for {room}', 'let {room} have {degrees} degrees')),
    Intent('clean', ('clean', 'vacuum', 'sweep', 'clean room', 'mop'), ('Clean a room.', 'Vacuum a place.', 'Sweep the floor of a room.'),
           (_p('room', 'place', 'room area place where zone', 'What to clean|The room', 'Which room should I clean?'),),
           ('clean {room}', 'vacuum {room}', 'sweep {room}', '{room} is dirty', 'clean up {room}', 'tidy the floor of {room}', 'mop {room}', 'do the floor in {room}'),
           'clean {room}', 'cleaned {room}', ('make {room} shiny', 'hoover {room}', 'remove the dust from {room}')),
    Intent('deliver', ('deliver', 'bring', 'carry to', 'transport', 'hand over'), ('Bring an object to a place.', 'Carry a thing somewhere.', 'Deliver an object.'),
           (OBJECT, _p('place', 'place', 'place destination to target room where', 'Where to bring it|The destination|Target place', 'Where should I bring it?')),
           ('bring {object} to {place}', 'carry {object} to {place}', 'deliver {object} to {place}', 'take {object} to {place}', '{object} must go to {place}', 'transport {object} to {place}',
            'move {object} over to {place}', 'put {object} in {place}'),
           'bring {object} to {place}', 'brought {object} to {place}', ('{place} needs {object}', 'drop {object} off at {place}', 'haul {object} to {place}')),
    Intent('timer', ('set timer', 'timer', 'start timer', 'countdown', 'alarm in'), ('Start a timer.', 'Set a countdown.', 'Ring after some minutes.'),
           (_p('minutes', 'integer', 'minutes mins duration time value', 'Minutes|How many minutes|Duration in minutes', 'For how many minutes?'),),
           ('set a timer for {minutes} minutes', 'timer {minutes} minutes', 'ring in {minutes} minutes', 'start a countdown of {minutes} minutes', 'wake me in {minutes} minutes',
            'count down {minutes} minutes', 'remind me in {minutes} minutes', 'start a {minutes} minute timer'),
           'set a timer for {minutes} minutes', 'set a timer for {minutes} minutes', ('beep after {minutes} minutes', 'give me an alarm in {minutes} minutes')),
    Intent('where', ('get pose', 'where am i', 'get position', 'robot position', 'localize'), ('Tell where the robot is.', 'Get the position of the robot.', 'Read the pose.'), (),
           ('where are you', 'what is your position', 'tell me your position', 'in which room are you', 'what is your location', 'where do you stand', 'position please', 'where are you now'),
           'read the position', 'read the position', ('report your whereabouts', 'which place is this'), 'I am at {value}.', 'place'),
    Intent('temperature', ('get temperature', 'read temperature', 'temperature', 'thermometer', 'sensor temperature'), ('Read the temperature.', 'Measure how warm it is.'), (),
           ('how warm is it', 'how cold is it here', 'what is the temperature', 'measure the temperature', 'read the thermometer', 'tell me the temperature', 'is it hot in here'),
           'read the temperature', 'read the temperature', ('how many degrees do we have', 'check how warm it is'), 'It is {value} degrees.', 'degrees'),
    Intent('music', ('play music', 'play song', 'music', 'play', 'start song'), ('Play music.', 'Play a song.', 'Start music of a title.'),
           (_p('title', 'words', 'title song name track music query', 'Title of the song|What to play|The music', 'What should I play?'),),
           ('play {title}', 'play the song {title}', 'put on {title}', 'I want to hear {title}', 'start the music {title}', 'let me hear {title}', 'play some {title}'),
           'play {title}', 'started {title}', ('spin the record {title}', 'listen to {title} now')),
    Intent('door', ('set door', 'door', 'operate door', 'door control'), ('Open or close a door.', 'Move a door.'),
           (_p('state', 'open', 'state action position command', 'open or close|What to do with it', 'Should I open or close it?'),
            _p('door', 'place', 'door name which room', 'Which door|Name of the door', 'Which door do you mean?')),
           ('{state} the door of {door}', '{state} the door to {door}', '{state} the door at {door}', 'please {state} the door in {door}', 'door of {door}: {state}'),
           '{state} the door of {door}', 'used the door of {door}', ('make the door of {door} {state}', '{state} up the door to {door}')),
)
PLACES = ('the kitchen', 'the living room', 'the office', 'the lab', 'the garage', 'the hallway', 'the bedroom', 'the bathroom', 'the entrance', 'the garden', 'room {n}', 'room {n}{l}',
          'the meeting room', 'the lobby', 'the workshop', 'the storage room', 'the elevator', 'the library', 'shelf {n}', 'station {n}', 'the {w} room', 'the {w}', 'the {w} {w}',
          "{name}'s desk", "{name}'s office", 'the {w} corner', 'gate {l}', 'the {w} station', 'zone {l}{n}', 'table {n}', 'the canteen', 'the window', 'the reception', '{name}')
OBJECTS = ('the {c} cup', 'the {c} box', 'the {c} ball', 'the bottle', 'the {w}', 'the {c} {w}', 'the {w} {w}', 'the cup', 'the book', 'the {c} block', 'my keys', 'my {w}', 'a {w}', 'the remote',
           "{name}'s {w}", 'the scissors', 'the {w} on the table', 'the screwdriver', 'the {c} one', 'box {n}', 'an apple', 'the towel', 'the glass')
COLOURS = ('red', 'green', 'blue', 'yellow', 'white', 'orange', 'purple', 'pink', 'black', 'brown', 'grey', 'cyan', 'turquoise', 'violet', 'silver', 'gold', 'magenta')
JOINTS = ('shoulder', 'elbow', 'wrist', 'base', 'left shoulder', 'right elbow', 'upper arm', 'forearm', 'gripper', 'neck', 'hip', '{w}', 'joint {n}')
