# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Kinds of tools for training alone: household, workshop, ward; and states that are asked for in idioms.

They teach to find the tool that is meant where no word of the sentence is in its declaration ('let go' opens a
gripper). Written as intents_more.py, without held-out phrasings: the evaluation has kinds of its own.
"""

from __future__ import annotations

from demo_model.held_apart import apart
from demo_model.intents import OBJECT, PERSON, PLACE, TEXT, Intent, Param
from demo_model.intents_more import param
from demo_model.phrasing import HELD_WORDS

_HELD = frozenset(HELD_WORDS)


def unheld_texts(texts: str) -> tuple[str, ...]:
    """The texts that `; ` parts, without those that have a word of the evaluation's."""
    kept = tuple(text for text in texts.split('; ') if not _HELD & set(text.lower().replace('.', '').split()))
    return kept or (texts.split('; ')[0],)


def kind_of(key: str, names: str, descriptions: str, params: tuple[Param, ...], commands: str, todo: str = '', done: str = '',
          answer: str = '', value_kind: str = '') -> Intent:
    """An Intent from strings whose parts `; ` separates."""
    name = names.split('; ')[0]
    return Intent(key, unheld_texts(names), unheld_texts(descriptions), params, apart(tuple(commands.split('; ')), ()),
                  todo or f'use the tool to {name}', done or f'used the tool to {name}', (), answer, value_kind)


def state(name: str, question: str, *states: str) -> Param:
    """An argument whose value nobody says as it is: each state is 'value: sentence; sentence'."""
    kept = tuple(
        f'{value}: ' + '; '.join(apart(tuple(sentences.split('; ')), ()))
        for value, _, sentences in (one.partition(': ') for one in states)
    )
    return Param('state', 'idiom', (name, 'state', 'action', 'value'), ('The state', 'What to do', 'New state'), question, kept)


def number(key: str, names: str, descriptions: str, question: str) -> Param:
    return param(key, 'integer', names, descriptions, question)


# fmt: off
FURTHER_INTENTS: tuple[Intent, ...] = (
    # States in idioms: the sentence says what is wanted, the declaration has the value.
    kind_of('claw', 'set gripper; gripper; claw; hand control; gripper state', 'Open or close the gripper.; Control the hand.; Set the state of the gripper.',
          (state('gripper', 'Should I open or close it?',
                  'open: let go( of it| of that| now|); let it go; release( it| that| your grip|); drop (it|that|what you hold); open (up|the hand|your hand|your claw|the claw|the gripper|your fingers|the jaws|wide); ungrip; hands off; give it to me; you can let go( now|); loosen (up|your grip); unhand it; spread your fingers; relax your (hand|fingers|grip); put it down; give it here; open the claws',
                  'close: grab (it|that|this|hold); grip (it|that|this|tight|now); grasp (it|this); hold (it|tight|on to it|on tight|this); squeeze( it| harder|); clamp (it|down|shut); pinch it; clutch it; close (up|the hand|your hand|your claw|the claw|the gripper|your fingers|the jaws); make a fist; take hold( of it|); catch it; shut (the claw|your hand|the gripper); do not let go; keep hold of it; get a grip on it; hang on to it; take it'),), '{state}'),
    kind_of('headlamp', 'headlights; set headlights; lamp switch; front light; lights', 'Switch the headlights.; Turn the front light on or off.',
          (state('power', 'On or off?',
                  'on: (lights|headlights|lamps) on; (turn|switch|put) on (the|your) (lights|headlights|lamp); (turn|switch|put) (the|your) (lights|headlights|lamp) on; it is (too |)dark( in here| here|); I cannot see a thing; light it up; let there be light; light the way; give me some light; we need (some |)light; lights please; brighten things up',
                  'off: (lights|headlights|lamps) (off|out); (turn|switch|put) off (the|your) (lights|headlights|lamp); (turn|switch|put) (the|your) (lights|headlights|lamp) (off|out); it is (too |)bright( in here|); you are (blinding|dazzling) me; kill the lights; no more light; darkness please; we do not need the light; stop shining; douse the lights; save some light'),), '{state}'),
    kind_of('mute', 'mute speaker; set mute; speaker; sound switch; audio', 'Mute the speaker or let it sound.; Switch the sound.',
          (state('sound', 'Should it be muted or not?',
                  'muted: (be|keep) quiet; (hush|shush|silence|quiet)(, please|); mute( yourself| the sound| the speaker|); not a sound; shut up; (sound|speaker|audio) off; stop making noise; pipe down; you are too noisy; zip it; no noise please; go silent',
                  'sounding: unmute( yourself| the speaker|); (sound|speaker|audio) (on|back on); you may (speak|make noise) again; let me hear you again; I cannot hear you any more; turn the sound back on; break your silence; give us sound'),), '{state}'),
    kind_of('alarm', 'alarm system; set alarm; guard mode; burglar alarm', 'Arm or disarm the alarm.; Control the burglar alarm.',
          (state('alarm', 'Should I arm or disarm it?',
                  'arm: arm (it|the alarm|the system); we are (all |)leaving now; set the alarm; alarm on; guard the house; everybody is out; secure the building; lock down for the night; keep burglars away; watch over the house',
                  'disarm: disarm (it|the alarm|the system); it is only me; alarm off; stand down; I am home; we are back; false alarm; stop the alarm; turn that siren off; no need to guard any more'),), '{state}'),
    kind_of('posture', 'set posture; body posture; stance; legs', 'Let the robot sit, stand or lie.; Set the posture of the legs.',
          (state('posture', 'Should I sit, stand or lie?',
                  'sit: sit( down|); have a seat; take a seat; be seated; on your bottom; sit, boy; squat; bottom down', 'stand: stand( up|); get up; on your feet; rise; up you get; up with you; be upright; stand tall; get on your legs',
                  'lie: lie( down|); down, boy; lay yourself down; flat on the ground; take a nap on the floor; go flat; get down low; stretch out on the floor'),), '{state}'),
    kind_of('camera', 'camera power; set camera; video feed; camera switch', 'Start or stop the camera.; Switch the video feed.',
          (state('camera', 'Should I start or stop it?',
                  'start: (camera|video|cam) on; show me what you see; start (the camera|filming|streaming); open your eyes; give me the picture; let me see through your eyes; (roll|run) the camera; stream what you see',
                  'stop: (camera|video|cam) off; stop (the camera|filming|streaming); close your eyes; no more pictures; do not watch (us|me); give us some privacy; look no more; end the stream; cover the lens'),), '{state}'),
    kind_of('brakes', 'set brakes; brake; wheel brake; parking brake', 'Set or release the parking brake.; Control the wheel brake.',
          (state('brake', 'Should I set or release it?',
                  'set: brakes on; (put|pull) the (parking |hand|)brake( on|); lock the wheels; make sure you cannot roll; block the wheels; hold the wheels',
                  'released: brakes off; release the (parking |hand|)brake; unlock the wheels; let the wheels roll; free the wheels; so that I can push you; take the brake off; handbrake off'),), '{state}'),
    kind_of('lid', 'lid; set lid; box lid; tray cover; hatch', 'Open or shut the lid.; Move the cover of the box.',
          (state('lid', 'Should I open or shut it?',
                  'open: lid (up|open); open (the lid|the box|the hatch|your box|up the box|the cover); I want to put something in; let me take it out; show me what is inside; lift the lid; uncover the box; unseal the box',
                  'shut: lid (down|shut|closed); (close|shut) (the lid|the box|the hatch|your box|the cover); cover it up; everything is in; you can shut it; put the lid on; seal the box'),), '{state}'),
    kind_of('mapping', 'mapping; map session; control mapping; slam', 'Start or stop drawing the map.; Control the mapping session.',
          (state('mapping', 'Should I start or stop it?', 'start: (begin|start) (mapping|the map|drawing the map|to map the area); map (this|the floor|the building|everything); explore the area; make a map; learn this place; get to know the house; survey the floor',
                  'stop: (stop|end|finish|quit) (mapping|the map|drawing the map|exploring); the map is (done|complete|finished); that is enough of the map; no more mapping'),), '{state}'),
    # Household.
    kind_of('oven', 'preheat oven; set oven; oven temperature; bake', 'Heat the oven.; Set the temperature of the oven in degrees.', (number('degrees', 'temperature degrees celsius heat', 'Degrees Celsius; Temperature of the oven', 'How hot should it be?'),),
          '(pre|)heat the oven to {degrees}( degrees|); oven (to|at|on) {degrees}( degrees|); {degrees} degrees in the oven; get the oven (hot, |up to |to ){degrees} degrees; I am baking, {degrees} degrees; bake at {degrees}( degrees|); the cake needs {degrees} degrees; set the oven to {degrees}( degrees| C|); warm up the oven, {degrees} degrees please; roast it at {degrees} degrees'),
    kind_of('laundry', 'start washing; wash clothes; washing machine; laundry', 'Run the washing machine.; Wash at a temperature in degrees.', (number('degrees', 'temperature degrees heat celsius', 'Degrees; Washing temperature', 'At which temperature?'),),
          'wash (it|the clothes|my clothes|the shirts|the laundry|a load) at {degrees}( degrees|); (do|start) (the laundry|a wash|the washing) at {degrees}( degrees|); {degrees} degree wash; a load at {degrees}( degrees|); run the washing machine at {degrees}; my shirts are dirty, {degrees} degrees; laundry, {degrees} degrees; {degrees} degrees for the towels; the sheets need {degrees} degrees'),
    kind_of('shopping', 'add to shopping list; shopping list; add groceries; grocery', 'Put something on the shopping list.; Add an item to the list.', (param('item', 'words', 'item what product entry', 'What to buy; The item', 'What should I put on the list?'),),
          'we are out of {item}; put {item} on the (shopping |)list; add {item}( to the list| to the shopping list|); we (need|have no|have run out of|are low on) {item}; {item} on the list; do not let me forget to buy {item}; shopping list: {item}; next time buy {item}; there is no {item} left; remind me to buy {item}; {item} is all gone'),
    kind_of('table', 'set table; lay table; table for', 'Lay the table for some people.; Set the table.', (number('people', 'people persons guests seats covers', 'How many people; Number of guests', 'For how many people?'),),
          '(set|lay|prepare) the table for {people}( people| guests| persons|); {people} (people|guests) (are coming|will be eating|for dinner|for lunch)(, lay the table|); we (are|will be) {people} for dinner; table for {people}(, please|); dinner for {people}; put out plates for {people}; {people} (plates|places|covers) please; there will be {people} of us at the table'),
    kind_of('serve', 'serve table; serve; wait on table; bring dish', 'Serve a dish at a table.; Bring food to a table number.', (param('dish', 'words', 'dish food meal order', 'What to serve; The dish', 'What should I serve?'), number('table', 'table number table_number', 'Which table; Number of the table', 'At which table?')),
          '{dish} (for|to) table {table}; table {table} (wants|ordered|gets|has|would like|is waiting for) {dish}; serve {dish} (at|to) table {table}; take {dish} (over |)to table {table}; one {dish} for table {table}; bring table {table} (the|their|its|some) {dish}; at table {table} they want {dish}; the {dish} goes to table {table}; order up, {dish}, table {table}'),
    kind_of('cutting', 'cut vegetables; slice; chop; dice', 'Cut food into pieces.; Slice something.', (param('food', 'words', 'food what ingredient vegetable', 'What to cut; The food', 'What should I cut?'), param('size', 'length', 'size thickness width pieces', 'Size of the pieces; Thickness', 'How thick should it be?')),
          '(cut|slice|chop|dice) {food} into (pieces|bits|slices|cubes) of {size}; (cut|slice|chop) {food} {size} (thick|wide|big); {size} (slices|cubes|pieces) of {food}; {food} in {size} (slices|pieces|cubes); I need {food} {size} thick; make {size} slices from {food}; {food}, (sliced|diced|chopped), {size}; (dice|slice) {food}, {size} each'),
    kind_of('bin', 'empty bin; take out trash; garbage; waste', 'Empty the bin of a room.; Take out the rubbish of a place.', (param('room', 'place', 'room place where location', 'Which room; The room of the bin', 'Which bin should I empty?'),),
          'empty the (bin|bins|trash|wastebasket) (in|of|at) {room}; take (out |)the (rubbish|trash|garbage) (from|in|out of) {room}; the (bin|trash can|wastebasket) (in|at) {room} is (full|overflowing); the rubbish in {room} smells; bin day for {room}; see to the bin in {room}; {room} has a full bin; get rid of the (rubbish|waste|trash) in {room}'),
    kind_of('tv', 'tv channel; set channel; switch channel; television', 'Change the channel of the television.; Set the TV channel.', (number('channel', 'channel number program station', 'Channel number; Which channel', 'Which channel?'),),
          '(switch|change|turn|flip|go) (the tv |the telly |)to channel {channel}; channel {channel}( please|); put (on |)channel {channel}( on|); I want to watch channel {channel}; what is on channel {channel}; the match is on channel {channel}; telly to {channel}; give me channel {channel}; show channel {channel}; (tv|television) {channel}'),
    kind_of('book', 'read book; audiobook; read story; open book', 'Read a book aloud.; Start an audiobook.', (param('title', 'words', 'title book name story', 'Title of the book; Which book', 'Which book should I read?'),),
          'read (me |us |)(the book |the story |){title}; I want to (hear|listen to) the (book|story) {title}; (start|open) the (book|story|audiobook) {title}; (read|tell) the kids the story (of |){title}; bedtime story: {title}; continue with the book {title}; let us read {title}; the next chapter of {title}; the (audiobook|book) {title} please'),
    kind_of('calendar', 'add appointment; calendar; schedule event; plan meeting', 'Put an appointment into the calendar.; Schedule an event for a day.', (param('event', 'words', 'event title what subject', 'What it is; Title of the event', 'What is the appointment?'), param('day', 'choice', 'day date when weekday', 'Which day; The day', 'On which day?', 'monday; tuesday; wednesday; thursday; friday; saturday; sunday; today; tomorrow')),
          '(put|enter|note) {event} (down for|in the calendar for|on) {day}; {event} (is|will be|takes place) (on |){day}; (schedule|plan|book|add) {event} for {day}; I have {event} (on |){day}; {day}: {event}; on {day} there is {event}; calendar, {event}, {day}; {day} is the day of {event}; make an appointment for {day}, {event}'),
    kind_of('weather', 'get weather; weather report; forecast', 'Tell the weather of a place.; Get the forecast for a city.', (param('city', 'name', 'city place location town where', 'Which city; The place', 'For which place?'),),
          '(what is|how is) the weather (like |)in {city}; (will|does) it rain in {city}; weather (in|for) {city}; do I need an umbrella in {city}; (forecast|weather report) for {city}; is it (cold|warm|sunny|snowing|windy|stormy) in {city}; tell me the weather in {city}; how will the weather be in {city}; is the sun shining in {city}; what should I wear in {city}', 'read the weather', 'read the weather'),
    kind_of('translate', 'translate; translate text; interpreter', 'Translate a text.; Say a text in another language.', (param('language', 'choice', 'language target_language to lang', 'The language; Into which language', 'Into which language?', 'german; french; spanish; italian; polish; turkish; arabic; hindi; chinese; japanese; portuguese; dutch'), TEXT),
          'translate into {language}: {text}; what is {language} for {text}; how do you say in {language}: {text}; (say|put) this in {language}: {text}; in {language}: {text}; to {language}: {text}; I need this in {language}: {text}; translate to {language} {text}; give me the {language} for {text}'),
    kind_of('joke', 'tell joke; joke; be funny', 'Tell a joke.; Make people laugh.', (), '(tell|give) (me|us) (a joke|another joke|something funny); make (me|us) laugh; (say|do) something funny; cheer (me|us) up; know any (good |)jokes; a joke please; I am sad; be funny; got a joke; entertain us; I could do with a laugh; joke time'),
    kind_of('news', 'read news; news; headlines', 'Read the news.; Tell what happened today.', (), '(read|tell|give) (me |us |)the (news|headlines); what is (new|in the news|going on in the world); what happened (today|in the world); any news; news please; (the |)headlines; is there anything new; I want to hear the news; catch me up on the news'),
    kind_of('game', 'play game; start game; game', 'Play a game with people.; Start a game.', (param('game', 'choice', 'game name which', 'Which game; The game', 'Which game?', 'chess; checkers; memory; bingo; quiz; cards; dominoes; tag; hide and seek; tic tac toe'),),
          "(let's|let us|shall we|can we|I want to) play (a round of |some |){game}; (start|begin) (a game of |){game}; (how about|fancy|who is up for) (a game of |a round of |){game}; the (kids|children) want (to play |){game}; play {game} with (me|us|the kids); {game} time; game of {game}; I challenge you to {game}; (set up|get out) the {game}; I am bored, {game}"),
    kind_of('dance', 'dance; do dance; dance style', 'Perform a dance.; Dance in a style.', (param('style', 'choice', 'style dance type name', 'Which dance; The style', 'Which dance?', 'waltz; tango; salsa; disco; robot; samba; ballet; polka; twist; swing'),),
          '(dance|do|show me) (a |the |){style}; (can you|do you know how to) (dance|do) the {style}; (let us|let me) see (you dance |)the {style}; the {style}( please| now|); give us (a |your best ){style}; perform the {style}; dance a {style} (for us|with me); {style} time; how does the {style} go; show your {style} moves'),
    # Ward and people.
    kind_of('pulse', 'measure pulse; heart rate; pulse', 'Measure the heart rate of a person.; Take the pulse of somebody.', (PERSON,),
          '(take|measure|check|get) the (pulse|heart rate|heartbeat) of {person}; (how fast is|how is|what is) the (pulse|heart rate|heart) of {person}; (check|see) how fast the heart of {person} (beats|is going); {person} feels faint; pulse (of|for|check on) {person}; {person}, heart rate; does the heart of {person} race', 'measure the pulse', 'measured the pulse', 'The pulse is {value}.', 'count'),
    kind_of('bed', 'bed height; raise bed; set bed; move bed', 'Set the height of the bed.; Raise or lower the bed.', (param('height', 'length', 'height level position', 'Height of the bed; Target height', 'How high should it be?'),),
          '(raise|lower|put|set|move|bring|lift) the bed (to|up to|down to|at) {height}; bed (to|at|height) {height}; I want the bed {height} high; the bed should be at {height}; (get|crank) the bed (up |down |)to {height}; {height} for the bed; the mattress at {height} please'),
    kind_of('nurse', 'call nurse; call help; alert staff; assistance', 'Call a nurse.; Ask the staff for help.', (), '(call|get|fetch|find) (a |the |)(nurse|doctor|staff|medic); (I|he|she|we) (need|needs) (help|a nurse|a doctor|assistance); (help|somebody help)(, please|!|); it is an emergency; somebody fell; he has fallen down; I am not feeling well; I feel sick; alert the staff; she does not answer any more; get help'),
    kind_of('visit', 'check on person; visit; look after; see person', 'Look after a person.; See whether a person is well.', (PERSON,), '(check|look in|drop in|call in) on {person}; (see|find out|make sure) (if|that|whether) {person} is (well|ok|all right|fine); how is {person} doing; is {person} (ok|all right|well|awake|asleep); {person} has not been seen today; look after {person}; pay {person} a visit; keep an eye on {person}; go and see {person}'),
    kind_of('handover', 'give object; hand to person; pass; give', 'Hand an object to a person.; Give something to somebody.', (OBJECT, param('person', 'name', 'person recipient to who', 'Who gets it; The person', 'Whom do you mean?')),
          '(give|hand|pass) {person} {object}; (give|hand|pass) {object} (over |)to {person}; {person} (wants|needs|asked for|gets|would like) {object}; {object} (is|goes|belongs) to {person}; let {person} have {object}; {object} for {person}( please|); {person} should get {object}; could {person} have {object}; pass {object} along to {person}'),
    kind_of('reserve', 'book room; reserve room; reservation', 'Reserve a room for some hours.; Book a place.', (param('room', 'place', 'room place which space', 'Which room; The room', 'Which room?'), number('hours', 'hours duration length time', 'How many hours; Duration in hours', 'For how many hours?')),
          '(book|reserve|block) {room} for {hours} hours; I need {room} for {hours} hours; {room}, {hours} hours; is {room} free for {hours} hours; keep {room} for {hours} hours; {hours} hours in {room}( please|); get us {room} for {hours} hours; our meeting in {room} takes {hours} hours'),
    # Workshop, warehouse, field.
    kind_of('drill', 'drill hole; drill; bore', 'Drill a hole.; Bore a hole of a depth.', (param('depth', 'length', 'depth deep length', 'Depth of the hole; How deep', 'How deep should it be?'),),
          'drill (a hole |)(of |){depth} (deep|into the wall|into the wood); a hole of {depth}( please|); drill {depth}( deep|); bore {depth} deep; make a hole, {depth} deep; {depth} deep hole; put a {depth} hole in (it|the board|the plate); we need a hole {depth} deep; drill down to {depth}'),
    kind_of('hook', 'crane hook; lower hook; move hook; crane', 'Set the height of the crane hook.; Raise or lower the hook.', (param('height', 'length', 'height level z', 'Height of the hook; Target height', 'To which height?'),),
          '(hook|crane) (to|at|down to|up to) {height}; (lower|raise|bring|hoist) the hook (to|down to|up to) {height}; hoist (it|the load) (to|up to) {height}; crane, {height}; the hook should hang at {height}; let the hook (down|up) to {height}; load up to {height}; hang it at {height}'),
    kind_of('torque', 'tighten screw; torque; fasten bolt; screw', 'Tighten a screw with a torque in newton metres.; Fasten a bolt.', (number('torque', 'torque nm newton_metres force', 'Torque in newton metres; Nm', 'With which torque?'),),
          '(tighten|fasten) (it|the screw|the bolt|the nut|this one) (to|with|at) {torque}( newton metres| Nm|Nm| newton meters|); {torque} (Nm|newton metres) on (the|this) (screw|bolt|nut); torque {torque}( Nm|); screw it (in|down) with {torque} Nm; the (bolt|nut) wants {torque} Nm; do the (bolt|screw) up to {torque} Nm; give (it|the bolt) {torque} Nm'),
    kind_of('tyre', 'inflate tyre; tire pressure; pump tyre; inflate', 'Pump up the tyres to a pressure in bar.; Inflate a tyre.', (param('pressure', 'decimal', 'pressure bar value target', 'Pressure in bar; Bar', 'To which pressure?'),),
          '(pump|inflate|fill) (up |)the (tyres|tires|tyre|tire|wheels) to {pressure}( bar|); (tyres|tires|tyre pressure|tire pressure) (to|at|) {pressure}( bar|); {pressure} bar in the (tyres|tires); {pressure} bar (please|will do); the (tyre|tire|tyres) (is|are|look) flat, {pressure} bar; give the (tyres|tires) {pressure} bar; air up to {pressure} bar; blow them up to {pressure} bar'),
    kind_of('stack', 'stack boxes; stack; pile up; palletize', 'Stack boxes on each other.; Pile up a number of crates.', (number('count', 'count number boxes layers height', 'How many; Number of boxes', 'How many?'),),
          '(stack|pile) (up |){count}( boxes| crates| pieces| of them|); (put|pile) {count} (boxes|crates) on top of each other; a (stack|pile|tower) of {count}( boxes| crates|); make (a |)stack(s|) of {count}; {count} high( please|); {count} (boxes|crates) per stack; tower of {count}; build it {count} boxes high'),
    kind_of('sort', 'sort objects; sort; sorting', 'Sort things by a property.; Put things in order.', (OBJECT, param('by', 'choice', 'by key property criterion', 'Sort by what; The property', 'By what should I sort?', 'size; weight; colour; shape; age; price; name; date; length')),
          'sort {object} by {by}; (put|arrange) {object} in order of {by}; (order|arrange|group) {object} by {by}; {object} sorted by {by}; by {by}, please, {object}; (I want|we need) {object} (by|in order of) {by}; bring order into {object}, by {by}; {by} decides, sort {object}'),
    kind_of('valve', 'set valve; valve; open valve', 'Open or close a valve by its number.; Move a valve.', (param('state', 'open', 'state action position', 'open or close; What to do', 'Should I open or close it?'), number('valve', 'valve number id', 'Which valve; Number of the valve', 'Which valve?')),
          '{state} (valve|tap) (number |){valve}; (valve|tap) {valve} {state}; (valve|tap) {valve}: {state}; {state} (up |){valve}; I need you to {state} valve {valve}; number {valve}, {state}; please {state} tap {valve}'),
    kind_of('turntable', 'turntable; rotate platform; turn plate', 'Turn the turntable by an angle.; Rotate the plate.', (param('angle', 'angle', 'angle rotation by amount', 'The angle; How far', 'By which angle?'),),
          '(turn|rotate|spin|move) the (turntable|plate|table|platter|workpiece|part) (by |){angle}; (turntable|plate|table) (by |){angle}; {angle} (on|with) the (turntable|plate); give the (plate|turntable) {angle}; show me the (piece|part) from {angle} round; spin the plate through {angle}'),
    kind_of('zoom', 'camera zoom; set zoom; magnify', 'Set the zoom of the camera as a factor.; Magnify the picture.', (param('factor', 'decimal', 'factor zoom magnification times', 'Zoom factor; How many times', 'How much?'),),
          '(zoom|magnify|enlarge)( in| it| the picture| the image|) {factor} times; zoom (in |)(to |by |at |){factor}( x| times|x|); {factor} (times|x) (zoom|magnification|bigger|closer); make (it|the picture) {factor} times (bigger|larger); get me {factor} times closer with the lens; (factor|zoom factor) {factor}; blow the image up {factor} times'),
    kind_of('stock', 'check stock; inventory; stock level', 'Tell how many pieces are in stock.; Look up the inventory.', (OBJECT,), '(how many|how much) of {object} (do we have|is left|is in stock|is there in store); (do we|have we) (still |)(have|got) {object}( in stock| left|); check (the stock|the inventory|what is left) of {object}; is {object} (in stock|sold out|still available); stock of {object}; are we out of {object}; inventory for {object}', 'check the stock', 'checked the stock', '{value} are in stock.', 'count'),
    kind_of('pallet', 'move pallet; fetch pallet; transfer pallet', 'Bring a pallet to a place.; Move a pallet by its number.', (number('pallet', 'pallet number id pallet_no', 'Which pallet; Number of the pallet', 'Which pallet?'), PLACE),
          '(take|bring|move|get) pallet (number |){pallet} to {place}; pallet {pallet} (to|goes to|belongs at|must be at) {place}; {place} (needs|wants|waits for) pallet {pallet}; (drop|put|leave|park) pallet {pallet} (at|in|by) {place}; the pallet with number {pallet} should be (at|in) {place}; pallet {pallet}, {place}'),
    kind_of('language', 'set language; language; speak language', 'Set the language of the robot.; Choose a language.', (param('language', 'choice', 'language lang tongue value', 'Which language; The language', 'Which language?', 'english; german; french; spanish; italian; polish; turkish; arabic; hindi; chinese; japanese; dutch'),),
          '(speak|talk|use|switch to|change to) {language}( please| from now on| with me|); {language}( please|); (can you|could you|do you) (speak|talk) {language}; I (do not understand|only understand|only speak) you, {language} please; my mother speaks {language}; set (the|your) language to {language}; (let us|can we) go on in {language}; {language} would be (better|easier)'),
    kind_of('line', 'follow line; line follower; track line', 'Follow a line of a colour on the floor.; Drive along a coloured line.', (param('colour', 'colour', 'colour color line which', 'Colour of the line; Which line', 'Which line?'),),
          '(follow|take|track|stay on|keep to|drive along|go along) the {colour} (line|stripe|tape|markings|track); the {colour} (line|stripe)( please| is yours| leads you there|); {colour} line; stick to the {colour} (line|tape); use the {colour} (line|track); your line is {colour}; go where the {colour} line goes'),
    kind_of('fork', 'set forks; fork height; raise forks', 'Raise or lower the forks.; Set the height of the forks.', (param('height', 'length', 'height level', 'Height of the forks; Height', 'To which height?'),),
          '(forks|fork) (to|at|up to|down to|) {height}; (raise|lower|bring|lift|drop) the (forks|fork) to {height}; get the forks (up|down) to {height}; forks {height} (up|high|off the ground); I want the forks at {height}; tines at {height}'),
    kind_of('search', 'search web; web search; look up; google', 'Search the web.; Look something up.', (param('query', 'words', 'query words what terms topic', 'What to look for; The words', 'What should I look up?'),),
          '(look up|google|search for|search the web for|look for) {query}( online| on the web| on the internet|); what does the internet say about {query}; (find|get me) (something|information|articles) about {query}; I want to know (more |all |)about {query}; tell me about {query}; who or what is {query}; research {query}; web search: {query}; read up on {query}'),
    kind_of('remindme', 'remind person; reminder; set reminder', 'Remind a person of something.; Set a reminder.', (PERSON, param('what', 'words', 'what topic task reminder', 'Of what; The task', 'Of what should I remind?')),
          'remind {person} (of|about) {what}; {person} (must not|should not) forget {what}; do not let {person} forget {what}; (jog|refresh) the memory of {person} about {what}; {person} always forgets {what}; a reminder (for|to) {person}: {what}; {person} has to think of {what}; make {person} think of {what}'),
    kind_of('wave', 'wave hand; wave; greet', 'Wave with the hand.; Greet people with the arm.', (), 'wave( to them| to me| at the kids| hello| goodbye|); (say hello|greet them) with your (hand|arm); give (them|us|her|him) a wave; wave your (hand|arm); a little wave please; move your hand hello; show them you are friendly; greet the (crowd|children|guests)'),
    kind_of('bow', 'bow; take bow; make bow', 'Bow before the people.; Make a bow.', (), '(take a|make a|do a) bow; bow( down| before her| to the queen| please|); thank the audience; show some respect; bend down politely; a bow please; the show is over; be polite to the guests'),
    kind_of('applause', 'clap hands; applaud; clap', 'Clap the hands.; Applaud.', (), '(clap|clap your hands|clap along|applaud); (give|let us give) (him|her|them) a (big |)hand; (a round of |some )applause( please|); a hand for the (winner|team|band); they did so well; put your hands together; cheer for her; show that you liked it'),
)
# fmt: on
