# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Further words for driving and turning, for training alone: verbs, directions, small amounts, templates as motion_phrases.py has them."""

from __future__ import annotations

from demo_model.phrasing import HELD_WORDS, unheld

# verb, -ing form
DRIVE_VERBS = (
    ('amble', 'ambling'), ('barrel', 'barrelling'), ('beetle', 'beetling'), ('bimble', 'bimbling'), ('bowl', 'bowling'), ('breeze', 'breezing'), ('bump', 'bumping'),
    ('buzz', 'buzzing'), ('canter', 'cantering'), ('career', 'careering'), ('chug', 'chugging'), ('clatter', 'clattering'), ('clomp', 'clomping'), ('coast', 'coasting'),
    ('cover ground', 'covering ground'), ('dart', 'darting'), ('dash', 'dashing'), ('draw', 'drawing'), ('drift', 'drifting'), ('ease', 'easing'), ('ease yourself', 'easing yourself'),
    ('edge', 'edging'), ('flit', 'flitting'), ('float', 'floating'), ('gallop', 'galloping'), ('hasten', 'hastening'), ('haul yourself', 'hauling yourself'), ('heave yourself', 'heaving yourself'),
    ('hobble', 'hobbling'), ('hoof it', 'hoofing it'), ('hop', 'hopping'), ('hotfoot it', 'hotfooting it'), ('hurry', 'hurrying'), ('hurtle', 'hurtling'), ('hustle', 'hustling'), ('jaunt', 'jaunting'),
    ('jet', 'jetting'), ('jog', 'jogging'), ('journey', 'journeying'), ('jump', 'jumping'), ('keep rolling', 'keeping rolling'), ('leap', 'leaping'), ('leg it', 'legging it'), ('limp', 'limping'),
    ('locomote', 'locomoting'), ('lollop', 'lolloping'), ('lope', 'loping'), ('lumber', 'lumbering'), ('manoeuvre', 'manoeuvring'), ('maneuver', 'maneuvering'), ('mosey', 'moseying'), ('motor', 'motoring'),
    ('nip', 'nipping'), ('nudge yourself', 'nudging yourself'), ('pace', 'pacing'), ('pad', 'padding'), ('perambulate', 'perambulating'), ('plod', 'plodding'), ('plough', 'ploughing'), ('plow', 'plowing'),
    ('pootle', 'pootling'), ('potter', 'pottering'), ('propel yourself', 'propelling yourself'), ('putter', 'puttering'), ('ramble', 'rambling'), ('reposition yourself', 'repositioning yourself'),
    ('relocate', 'relocating'), ('rumble', 'rumbling'), ('rush', 'rushing'), ('sail', 'sailing'), ('sashay', 'sashaying'), ('saunter', 'sauntering'), ('scamper', 'scampering'), ('scoot', 'scooting'),
    ('scurry', 'scurrying'), ('scuttle', 'scuttling'), ('shove yourself', 'shoving yourself'), ('shuffle', 'shuffling'), ('shunt', 'shunting'), ('skate', 'skating'), ('skip', 'skipping'), ('skitter', 'skittering'),
    ('slink', 'slinking'), ('slip', 'slipping'), ('slog', 'slogging'), ('speed', 'speeding'), ('sprint', 'sprinting'), ('squeeze', 'squeezing'), ('stagger', 'staggering'), ('steam', 'steaming'),
    ('stride', 'striding'), ('stroll', 'strolling'), ('strut', 'strutting'), ('stump', 'stumping'), ('surge', 'surging'), ('sweep', 'sweeping'), ('take yourself', 'taking yourself'), ('taxi', 'taxiing'),
    ('thrust', 'thrusting'), ('tiptoe', 'tiptoeing'), ('toddle', 'toddling'), ('tootle', 'tootling'), ('totter', 'tottering'), ('traipse', 'traipsing'), ('tramp', 'tramping'), ('transit', 'transiting'),
    ('translate', 'translating'), ('transport yourself', 'transporting yourself'), ('tread', 'treading'), ('trek', 'trekking'), ('trickle', 'trickling'), ('trot', 'trotting'), ('trudge', 'trudging'),
    ('venture', 'venturing'), ('vroom', 'vrooming'), ('waddle', 'waddling'), ('waltz', 'waltzing'), ('wander', 'wandering'), ('wend your way', 'wending your way'), ('wheel yourself', 'wheeling yourself'),
    ('whizz', 'whizzing'), ('whoosh', 'whooshing'), ('work your way', 'working your way'), ('worm your way', 'worming your way'), ('feel your way', 'feeling your way'), ('zip', 'zipping'), ('zoom', 'zooming'),
)
FORWARD_VERBS = (
    ('press on', 'pressing on'), ('press ahead', 'pressing ahead'), ('forge ahead', 'forging ahead'), ('forge on', 'forging on'), ('push ahead', 'pushing ahead'), ('move along', 'moving along'),
    ('move ahead', 'moving ahead'), ('gain ground', 'gaining ground'), ('make headway', 'making headway'), ('make progress', 'making progress'), ('progress', 'progressing'), ('pull forward', 'pulling forward'),
    ('pull ahead', 'pulling ahead'), ('pull up', 'pulling up'), ('come closer', 'coming closer'), ('come nearer', 'coming nearer'), ('draw near', 'drawing near'), ('draw closer', 'drawing closer'),
    ('edge closer', 'edging closer'), ('inch closer', 'inching closer'), ('head on', 'heading on'), ('go forth', 'going forth'), ('sally forth', 'sallying forth'), ('march on', 'marching on'), ('roll on', 'rolling on'),
    ('steam ahead', 'steaming ahead'), ('plough on', 'ploughing on'), ('soldier on', 'soldiering on'), ('move in', 'moving in'), ('close in', 'closing in'), ('step up', 'stepping up'), ('come up', 'coming up'),
    ('go straight', 'going straight'), ('go right ahead', 'going right ahead'), ('hold your course', 'holding your course'), ('stay on course', 'staying on course'), ('keep straight on', 'keeping straight on'),
    ('keep on', 'keeping on'), ('plod on', 'plodding on'), ('nose forward', 'nosing forward'), ('lunge', 'lunging'), ('close up', 'closing up'), ('advance yourself', 'advancing yourself'), ('trundle on', 'trundling on'),
    ('carry straight on', 'carrying straight on'), ('get nearer', 'getting nearer'), ('follow your nose', 'following your nose'), ('continue straight', 'continuing straight'), ('walk on', 'walking on'),
)
BACKWARD_VERBS = (
    ('back out', 'backing out'), ('back yourself up', 'backing yourself up'), ('back it up', 'backing it up'), ('back down', 'backing down'), ('backtrack', 'backtracking'), ('backpedal', 'backpedalling'),
    ('back-pedal', 'back-pedalling'), ('drop back', 'dropping back'), ('roll back', 'rolling back'), ('draw back', 'drawing back'), ('edge back', 'edging back'), ('ease back', 'easing back'),
    ('pull away', 'pulling away'), ('pull out', 'pulling out'), ('go into reverse', 'going into reverse'), ('go astern', 'going astern'), ('make sternway', 'making sternway'), ('set back', 'setting back'),
    ('stand back', 'standing back'), ('recede', 'receding'), ('recoil', 'recoiling'), ('retire', 'retiring'), ('regress', 'regressing'), ('retrace your steps', 'retracing your steps'),
    ('retrace your path', 'retracing your path'), ('reverse out', 'reversing out'), ('reverse yourself', 'reversing yourself'), ('give ground', 'giving ground'), ('give way', 'giving way'), ('yield', 'yielding'),
    ('make room', 'making room'), ('make space', 'making space'), ('distance yourself', 'distancing yourself'), ('shrink back', 'shrinking back'), ('shy away', 'shying away'), ('scoot back', 'scooting back'),
    ('shuffle back', 'shuffling back'), ('hop back', 'hopping back'), ('jump back', 'jumping back'), ('beat a retreat', 'beating a retreat'), ('move away', 'moving away'), ('step away', 'stepping away'),
    ('get away', 'getting away'), ('get back', 'getting back'), ('backstep', 'backstepping'), ('moonwalk', 'moonwalking'), ('crawfish', 'crawfishing'), ('put it in reverse', 'putting it in reverse'),
    ('engage reverse', 'engaging reverse'), ('scooch back', 'scooching back'), ('crab back', 'crabbing back'), ('get out of the way', 'getting out of the way'),
)
FORWARD_WORDS = (
    'dead ahead', 'right ahead', 'full ahead', 'due ahead', 'up ahead', 'forrard', 'fore', 'to the fore', 'frontward', 'in front', 'in front of you', 'out in front', 'up front', 'the way you are facing',
    'the way you face', 'in the direction you are facing', 'where you are looking', 'where your nose points', 'nose first', 'front first', 'bow first', 'face first', 'headlong', 'along your nose', 'straight along',
    'straight forwards', 'along', 'further along', 'nearer', 'nearer to me', 'closer to me', 'towards me', 'in my direction', 'up', 'ahead of you', 'along the positive x axis', 'in +x', 'in the positive direction',
    'on your present course', 'on your current heading', 'along your heading', 'with your front leading', 'in first gear', 'in drive', 'facing forward', 'in a forward motion', 'prograde', 'longitudinally',
    'straight as an arrow', 'as the crow flies', 'farther', 'farther on', 'right on', 'to your front', 'onto new ground',
)
BACKWARD_WORDS = (
    'astern', 'full astern', 'dead astern', 'straight astern', 'aft', 'to the aft', 'sternward', 'sternwards', 'stern first', 'tail first', 'rear first', 'back end first', 'bum first', 'heel first', 'behind you',
    'to behind you', 'towards your back', 'toward your rear', 'towards your tail', 'back out', 'back away from me', 'the way you came', 'back the way you came', 'back along your track', 'back where you came from',
    'opposite to your heading', 'against your heading', 'contrary to your nose', 'counter to where you look', 'in -x', 'along the negative x axis', 'in the negative direction', 'with your back leading', 'hindwards',
    'hindward', 'retrograde', 'in a backward motion', 'in backward motion', 'on reverse', 'in retreat', 'out of the way', 'out of my way', 'farther away', 'further away from me', 'away from us', 'to your rear',
    'in the rear direction', 'in the reverse direction', 'rearways', 'backways', 'aback', 'abaft', 'posteriorly', 'with your tail leading',
)
SMALL_DRIVE = (
    'a smidgen', 'a smidge', 'a tad', 'a hair', 'a whisker', 'a notch', 'a fraction', 'a mite', 'a jot', 'a trifle', 'a shade', 'a pinch', 'a skosh', 'a titch', 'a crumb', 'a little way', 'a short way', 'a short distance',
    'a small distance', 'a tiny distance', 'a small way', 'some little way', 'a little stretch', 'a short stretch', 'ever so slightly', 'marginally', 'minimally', 'the tiniest bit', 'a teeny bit', 'a teensy bit',
    'a teeny-weeny bit', 'an itsy bitsy bit', 'a little bit more', 'a little more', 'a bit more', 'a bit of a way', 'not far', 'not very far', 'a short hop', 'a small hop', 'a baby step', 'a little nudge', 'a wee way', 'a dab',
)
TURN_VERBS = (
    ('slew', 'slewing'), ('slew round', 'slewing round'), ('gyrate', 'gyrating'), ('whirl', 'whirling'), ('twirl', 'twirling'), ('pirouette', 'pirouetting'), ('reorient yourself', 'reorienting yourself'),
    ('orient yourself', 'orienting yourself'), ('orientate yourself', 'orientating yourself'), ('reorientate yourself', 'reorientating yourself'), ('realign yourself', 'realigning yourself'), ('angle yourself', 'angling yourself'),
    ('tack', 'tacking'), ('come', 'coming'), ('come round', 'coming round'), ('change course', 'changing course'), ('alter course', 'altering course'), ('alter your heading', 'altering your heading'), ('deviate', 'deviating'),
    ('divert', 'diverting'), ('deflect', 'deflecting'), ('curve', 'curving'), ('bend', 'bending'), ('arc', 'arcing'), ('hook', 'hooking'), ('peel off', 'peeling off'), ('break', 'breaking'), ('crank yourself', 'cranking yourself'),
    ('bank', 'banking'), ('circle', 'circling'), ('wind round', 'winding round'), ('screw round', 'screwing round'), ('skew', 'skewing'), ('slant', 'slanting'), ('spin your body', 'spinning your body'), ('spin round', 'spinning round'),
    ('swing round', 'swinging round'), ('swing your nose', 'swinging your nose'), ('swing your bow', 'swinging your bow'), ('bring your nose', 'bringing your nose'), ('bring yourself round', 'bringing yourself round'),
    ('shift your heading', 'shifting your heading'), ('trim your heading', 'trimming your heading'), ('aim yourself', 'aiming yourself'), ('cut', 'cutting'), ('hang', 'hanging'), ('make a turn', 'making a turn'),
    ('execute a turn', 'executing a turn'), ('take a turn', 'taking a turn'), ('carry out a rotation', 'carrying out a rotation'), ('jink', 'jinking'), ('luff', 'luffing'), ('gybe', 'gybing'), ('jibe', 'jibing'),
    ('nose', 'nosing'), ('pivot on your axis', 'pivoting on your axis'), ('rotate about your axis', 'rotating about your axis'), ('turn on your heel', 'turning on your heel'), ('turn on a sixpence', 'turning on a sixpence'),
    ('turn on a dime', 'turning on a dime'), ('sheer', 'sheering'), ('wheel round', 'wheeling round'), ('turn your nose', 'turning your nose'), ('turn your face', 'turning your face'), ('turn your chassis', 'turning your chassis'),
    ('turn your front', 'turning your front'), ('twist yourself', 'twisting yourself'), ('twist round', 'twisting round'), ('wriggle', 'wriggling'), ('yaw your base', 'yawing your base'), ('zag', 'zagging'), ('zig', 'zigging'),
    ('steer yourself', 'steering yourself'), ('shuffle round', 'shuffling round'), ('shift round', 'shifting round'), ('bear away', 'bearing away'), ('fork', 'forking'), ('filter', 'filtering'), ('cock your nose', 'cocking your nose'),
    ('tweak your heading', 'tweaking your heading'), ('waltz', 'waltzing'), ('swish', 'swishing'), ('swirl', 'swirling'), ('roll round', 'rolling round'), ('edge round', 'edging round'), ('ease round', 'easing round'),
)
LEFT_WORDS = (
    'port', 'to port', 'hard to port', 'to the port side', 'larboard', 'leftways', 'leftwise', 'left-handed', 'left hand', 'on the left', 'sinistral', 'widdershins', 'withershins', 'haw', 'to the side of your heart',
    'round to the left', 'left round', 'round left', 'anticlock', 'contraclockwise', 'against the clock hands', 'opposite to the clock', 'against the sun', 'counterclockwise seen from above', 'in the positive sense',
    'in the mathematically positive sense', 'with positive yaw', 'due left', 'left hand down', 'on your left flank', 'L', 'lft', 'to the lhs', 'portside', 'to the left-hand side', 'left about', 'off to the left', 'out left',
)
RIGHT_WORDS = (
    'starboard', 'to starboard', 'hard to starboard', 'to the starboard side', 'rightways', 'rightwise', 'right-handed', 'right hand', 'on the right', 'dextral', 'deasil', 'sunwise', 'gee', 'round to the right', 'round right',
    'clock', 'with the clock hands', 'with the hands of the clock', 'the way of the clock', 'as a clock runs', 'with the sun', 'clockwise seen from above', 'in the negative sense', 'in the mathematically negative sense',
    'with negative yaw', 'due right', 'right hand down', 'on your right flank', 'R', 'rt', 'to the rhs', 'to the right-hand side', 'right about', 'off to the right', 'out right', 'to the side without your heart',
)
SMALL_TURN = (
    'a smidgen', 'a smidge', 'a tad', 'a hair', 'a whisker', 'a notch', 'a fraction', 'a mite', 'a jot', 'a trifle', 'a shade', 'a pinch', 'a skosh', 'a titch', 'ever so slightly', 'marginally', 'minimally', 'the tiniest bit',
    'a teeny bit', 'a teensy bit', 'an itsy bitsy bit', 'a little bit more', 'a little more', 'a bit more', 'a small angle', 'a tiny angle', 'not far', 'not very far', 'a little nudge', 'a tweak', 'a dab',
)

# Verb phrases, with {V} or with a verb of their own
DRIVE = (
    '{D} {V} {Q}', '{V} {D} over {Q}', '{V} {D} across {Q} of (floor|ground|carpet|open space)', '{V} {D} (through|along) {Q} (of corridor|of hallway|of space|)', '{V} {D} a (stretch|span|length|leg|reach) of {Q}',
    '{V} {D} the (length|equivalent|space|width) of {Q}', '{V} {D} a (good|full|further|mere|bare|solid|clean|whole) {Q}', '{V} {D} (approximately|nearly|almost|circa|ca.|maybe|perhaps|say) {Q}',
    '{V} {D} {Q} (or so|or thereabouts|give or take|tops|max|at most|all told|in total|altogether|flat)', '{V} {Q} (or so|or thereabouts|give or take|tops|max|in total|overall) {D}',
    "{V} {D} (at a walking pace|at a crawl|dead slow|at a snail's pace|at top speed|flat out|at full throttle|in one go|in a single move) {Q}",
    '{V} {D} {Q} (steadily|smoothly|briskly|swiftly|cautiously|softly|gingerly|leisurely|warily|speedily|promptly|stealthily|quietly)', '(steadily|smoothly|briskly|swiftly|cautiously|gingerly|stealthily|promptly) {V} {D} {Q}',
    '{V} {D} {Q}, then (brake|freeze|park|pause|rest|come to a standstill|cut the motors|idle)', '{V} {Q} {D} and (brake|freeze|park|pause|rest|come to a standstill|cut the motors|idle)',
    '{V} {D} until your (odometer|odometry|counter|encoder) (reads|shows|says) {Q}', '{V} {D} till {Q} are (covered|through|over|accomplished)', '{V} {D} by the (amount|measure|length) of {Q}',
    '{V} {D} with a (displacement|travel|stroke|range) of {Q}', '{V} {D} at least {Q}', '{V} {D}, (namely|i.e.|that is|meaning|to be exact) {Q}', '{V} {D}, distance(:| is| =) {Q}',
    '{V} {D} {Q} (on your wheels|with your base|under your own power|with the chassis|on your rollers)', '{V} {Q} {D} (across|over|along) the (floor|carpet|ground|tiles|corridor|hall|parquet|lino|pavement)',
    '{V} {D} {Q} (without turning|without swerving|in a beeline|keeping your heading|holding your heading|as straight as you can)', '{V} {D} {Q} (for a start|to begin with|first of all|for starters|if the coast is clear|if nothing blocks you)',
    '(release|loosen|let off) the (brakes|brake|handbrake) and {V} {D} {Q}', '(cast off|weigh anchor|shift into gear|start the engine|step on it) and {V} {D} {Q}', 'with (both|all) wheels {V} {D} {Q}', 'for {Q} {V} {D}', 'by {Q} {V} {D}',
    '(cover|clock up|log|rack up|put in|knock off|complete|manage|accomplish) {Q} {D}', '(cover|traverse|span|cross) {Q} of (ground|floor|terrain) {D}', '(add|tack on|append|gain|make up) {Q} {D}',
    '(put|place|ease|nudge|roll|send|shift) (your chassis|your body|the platform|the base|your frame|your undercarriage) {Q} {D}', '(drag|haul|heave|shove|lug|scoot) your (body|frame|hull|carcass|bulk|machinery) {D} by {Q}',
    'let (yourself|the wheels|the base|your wheels) (roll|coast|run|drift|trickle) {D} {Q}', '(run|work|power|drive|actuate) (your|the) (wheels|motors|engine|rollers) {D} for {Q}',
    '(make|execute|carry out|perform|undertake|effect) a (hop|jaunt|excursion|translation|displacement|shift|manoeuvre|dash|leg|stroll) of {Q} {D}', '(make|take|do|enjoy) a {Q} (hop|jaunt|excursion|stroll|dash|saunter|jog|hike|outing) {D}',
    '(alter|change|adjust|correct) your (position|location|place|standpoint) {D} by {Q}', '(offset|translate|displace) (yourself|your position|your pose) {Q} {D}', 'be {Q} {D} of (here|this spot|where you are)',
    '(end up|finish|wind up|come to rest|settle|halt) {Q} {D} (of here|from here|of this spot)', '(leave|quit|vacate) this spot by {Q} {D}', '(hit|press|tap) the (gas|accelerator|pedal|throttle) {D} for {Q}', 'apply (thrust|power|throttle|traction) {D} for {Q}',
    '(set|plot|steer|lay|hold) a course {D} for {Q}', 'stretch your (legs|wheels) {D} for {Q}',
)
# Sentences of their own, or without a verb
DRIVE_WHOLE = (
    '(I|we) (require|request|desire|expect|demand|fancy|could use|could do with) {Q} {D}', '(what I need|what I want|what we want|all I ask|all we need|the order) is {Q} {D}', '{Q} (should|must|need to|have to|are to|ought to) be (driven|covered|travelled|crossed) {D}',
    '{Q} {D} (would|will) (do|suffice|be enough|be fine|be lovely|help|be plenty)', '{Q} {D} (is|are) (wanted|needed|called for|required|in order|due|up next)',
    'the (robot|base|platform|machine) (should|must|is to|ought to) be (moved|driven|shifted|displaced|rolled|brought) {Q} {D}', 'you (are to|shall|ought to|have to|had better|may|need to) {V} {D} {Q}',
    '(any chance of|how about|fancy|care for|up for|ready for|what do you say to) {Q} {D}?', 'would {Q} {D} be (possible|ok|okay|all right|too much to ask|feasible)?', 'can we have you {Q} {D}?', 'shall we say {Q} {D}?', 'why not {V} {D} {Q}?',
    '(off|away|there) you go, {D} {Q}', '(giddy up|tally-ho|chop chop|ready steady go|on you go|come along|shoo|choo choo|beep beep|hop hop|gangway|full steam), {Q} {D}',
    '(translation|displacement|odometry|offset|delta|stroke|travel|leg|range|locomotion)(:| =|) {Q} {D}', '(course|bearing|dir|way) {D}; (range|length|dist|amount) {Q}', '(range|length|dist|amount) {Q}; (course|bearing|dir|way) {D}',
    'the (amount|range|length|measure) is {Q}, the (way|course|sense|bearing) {D}', '{D} (it is|we go|you go|is the way), {Q}', '{D} is (where|the way) I want you, {Q}', '(orders|instructions|brief|assignment|mission|programme)(:| -) {Q} {D}',
    'you are {Q} off, {V} {D}', '(we are|it is|that is|you are) (still |){Q} short, so {V} {D}', 'a (hop|skip|dash|nudge|shove|jaunt|stroll|push|glide|scoot|shunt|leg|stretch) of {Q} {D}', 'one {Q} (hop|dash|nudge|shove|jaunt|stroll|push|glide|shunt|stretch) {D}, (please|now|robot)',
    '{Q} worth of (driving|travel|motion|movement|progress|rolling) {D}', 'some (driving|travel|motion|movement|rolling) {D}, {Q} of it', '{D}, (and make it|and let it be|but just|all of|a good|a full|not less than|to the tune of) {Q}', '{Q}, (all of it|and that|and all|every bit of it) {D}',
    '{D} with you, {Q}', '{D} with (the robot|your base|this machine|the cart|those wheels) by {Q}', '(mate|buddy|pal|dude|chum|sweetie|captain|dear|old boy), {Q} {D}', '{D} {Q}, (mate|buddy|pal|dude|chum|captain|dear|my friend)',
    '{Q} {D} (pronto|asap|stat|at the double|if you would|if you will|would you|pretty please|pls|plz|ta|cheers)', '(by all means|if you would be so good|with your permission|at your convenience|when convenient|whenever it suits), {Q} {D}',
    '(helm|helmsman|driver|pilot|engine room|conductor|chauffeur|coachman), {D} {Q}', '(it takes|it wants|this calls for|the plan calls for|the job needs|the map asks for) {Q} {D}', '(setpoint|input|parameters|args|vector|waypoint|argument)(:| =) {Q} {D}',
    '(wheels|motors|engines|throttle|gear|drivetrain) {D}, {Q}', '(imagine|picture|mark) a (line|point|spot) {Q} {D} and {V} there', 'see (that|the) (spot|place|mark) {Q} {D}? {V} there', '(spot|place|mark) {Q} {D}, that is where you (belong|should stop|should be)',
    'it is your (turn|job|duty|task) to {V} {D} {Q}', 'there (should|must|ought to) be {Q} of (travel|motion|driving) {D}', 'no (dawdling|dallying|fuss|detour), {Q} {D}', '{Q}: (direction|way|course|bearing) {D}', 'from (here|this point|your place) {Q} {D}', 'nothing but {Q} {D}',
)
TURN = (
    '{D} {V} {Q}', '{V} {D} (over|across|through|along) an arc of {Q}', '{V} {D} with a (rotation|swing|sweep|swivel) of {Q}', '{V} {D} a (good|full|further|mere|clean|whole) {Q}', '{V} {D} {Q} (or so|or thereabouts|give or take|tops|max|all told|in total)',
    '{V} (approximately|nearly|almost|circa|maybe|perhaps|say) {Q} {D}', '{V} {D} {Q} (steadily|smoothly|briskly|swiftly|cautiously|gingerly|leisurely|promptly|neatly)', '(steadily|smoothly|briskly|swiftly|cautiously|gingerly|neatly) {V} {Q} {D}',
    '{V} {D} {Q} (about|around|on) your (own |)(axis|vertical axis|centre|center|z axis|middle|heel)', '{V} {D} {Q} (without moving off|without leaving the spot|where you stand|on the same spot|with no driving|while staying put)',
    '{V} {D} {Q}, then (brake|freeze|pause|rest|come to a standstill|cut the motors)', '{V} {D} until your (compass|gyro|yaw|azimuth) has (changed|moved|swung) by {Q}', 'with (opposed|counter-rotating|differential) wheels {V} {D} {Q}',
    '{V} {Q} over your {side} (shoulder|wheel|flank)', '{V} {Q} towards your {side} (hand|arm|flank|shoulder|wheel)', 'for {Q} {V} {D}', 'by {Q} {V} {D}',
    '(swing|bring|put|nudge|ease|cock|twist|work) your (nose|front|bow|snout|chest|body|chassis|base) {Q} {D}', '(swing|bring|nudge|ease|work) your (nose|front|bow|snout|body|chassis|base) (round|around) {D} by {Q}',
    '(put|lay|throw|push) the (helm|wheel|rudder|tiller) {D} (by|for|through) {Q}', '(amend|correct|trim|modify|shift) your (course|yaw|orientation|bearing|azimuth|attitude) {D} by {Q}', '(amend|correct|trim|modify|shift) the (course|yaw|orientation|bearing|azimuth) by {Q} {D}',
    '(make|execute|carry out|undertake|effect) a (swing|spin|pivot|swivel|twist|yaw|slew|twirl|course change) of {Q} {D}', '(make|execute|carry out|do) a {Q} (swing|spin|pivot|swivel|twist|slew|twirl|course change|bend) {D}',
    'take the (bend|corner|curve|bow) {D} at {Q}', '(end up|finish|wind up) facing {Q} {D} (of now|from here|)', '(crank it|whip round|whip around|throw yourself|sling yourself) {Q} {D}', '(follow|trace|scribe) an arc of {Q} {D}', 'be (turned|rotated|spun|swung|slewed) {D} by {Q}',
    '(offset|increment|bump|tweak) your (yaw|theta|heading|bearing) {Q} {D}',
)
TURN_WHOLE = (
    '(hard|sharp|gentle|easy|quick|brisk) {side}, {Q}', '(helm|rudder|wheel|nose|bow|tiller|snout|bonnet) {D}, {Q}', '(helmsman|driver|pilot|captain|chauffeur|mate|pal), {D} {Q}', '{Q} (of|worth of) (rotation|yaw|turning|spin|swing|twist) {D}',
    '{Q} (should|must|need to|are to) be turned {D}', '{Q} {D} (would|will) (do|suffice|be enough|be fine|be lovely|be plenty)', '{Q} {D} (is|are) (wanted|needed|called for|required|in order|due)',
    'the (robot|base|platform|machine) (should|must|is to|ought to) be (turned|rotated|spun|swung|pivoted|slewed|twisted) {Q} {D}', 'your (nose|front|bow|face|body) (should|must|has to|ought to) (be|end up|look) {Q} {D}',
    '(yaw|rot|theta|azimuth|psi|swivel|slew)(:| =|) {Q} {D}', '(dir|sense|sense of rotation|side|handedness) {D}; (amount|arc|magnitude|extent) {Q}', '(amount|arc|magnitude|extent) {Q}; (dir|sense|side|handedness) {D}',
    '(any chance of|how about|fancy|care for|up for|what do you say to) {Q} {D}?', 'would {Q} {D} be (possible|ok|all right|feasible)?', '(chuck|pull|bang|throw|hook|crank|cut) a {side}, {Q}', '{side} (spin|pivot|swing|bend|curve|corner|hook|yaw|swivel|twist) of {Q}',
    '{side} (face|incline|wheel|about), {Q}', 'over your {side} shoulder, {V} {Q}', 'on your {side} (hand|flank|wheel), {Q}', '(we|I) (require|request|desire|expect|fancy|could do with) {Q} {D}', '(orders|instructions|brief|assignment|manoeuvre)(:| -) {Q} {D}',
    'you are {Q} off, {V} {D}', '{D} (it is|we go|you go), {Q}', '{Q}, (all of it|and that|and all) {D}', '{D}, (and make it|and let it be|but just|a good|a full|to the tune of) {Q}', 'one {Q} (spin|swing|twist|swivel|pivot|twirl) {D}, (please|now|robot)', '{D} with (you|your nose|your front|the base) by {Q}',
    'you (are to|shall|ought to|had better|may|need to) {V} {D} {Q}', 'the (arc|amount|swing) is {Q}, the (sense|side|way) {D}', '{Q} {D} (pronto|asap|at the double|if you would|if you will|pretty please|pls|cheers)',
)
NAMED_ANGLES = (
    (90, '(a|one) quarter revolution'), (90, 'a quarter of a (revolution|circle|spin)'), (90, 'a square turn'), (90, 'a right-angled turn'), (90, 'a fourth of a turn'), (90, 'a quarter spin'), (180, '(a half|half a) revolution'),
    (180, 'a semicircle'), (180, 'two right angles'), (180, 'a straight angle'), (180, 'a one eighty'), (360, '(a full|one|a complete|a whole) revolution'), (360, 'a full loop'), (360, 'a pirouette'), (360, 'a three sixty'),
    (270, 'three right angles'), (270, 'three quarters of a (revolution|circle)'), (270, 'a two seventy'), (720, 'two (revolutions|full circles|rotations)'), (720, 'a double (turn|spin)'), (540, 'a turn and a half'),
    (120, 'a third of a (turn|circle|revolution)'), (240, 'two thirds of a turn'), (72, 'a fifth of a turn'), (36, 'a tenth of a turn'), (45, 'half a right angle'), (45, 'an eighth of a (circle|revolution)'), (45, 'a forty-five'),
    (135, 'three eighths of a turn'), (1080, 'three (revolutions|rotations)'), (60, 'one sixth of a (turn|circle)'),
    (360, '(a|one) (full|whole|complete|big|entire|proper) (spin|turn|circle|rotation|twirl|twist|round)( on the spot| in place|)'), (360, '(a|one) (big |nice |quick |slow |)(spin|turn|circle|twirl|rotation), (a whole one|a full one|a complete one|all the way|all the way round|the whole way round|once round|the full circle)'),
    (360, '(in |)(a|one) (full |whole |complete |)(circle|loop|ring) (on the spot|in place|where you are|where you stand)'), (360, '(round|around) once( on the spot| in place|)'), (360, 'once (right |completely |)(round|around)( on the spot|)'), (360, 'all 360 degrees'), (360, 'the full 360( degrees|)'), (360, 'a (complete |full |whole |)(360|three sixty|three hundred and sixty)'),
    (360, 'one time (round|around)'), (180, '(a|one) half (spin|turn|twist|twirl|rotation)( on the spot| in place|)'), (180, 'half (way |)(round|around)( on the spot|)'), (180, 'half a (spin|circle|rotation|revolution|twirl)'), (180, 'halfway (round|around)'), (90, 'a quarter (of a |)(spin|circle|rotation|revolution)'), (90, 'a quarter (round|around)'), (90, 'one right angle'), (90, 'a full right angle'),
    (90, 'a (proper|clean|sharp|square) right angle'), (720, 'two (full|whole|complete|entire) (spins|turns|circles|rotations|twirls)'), (720, 'twice (all the way |right |completely |)(round|around)'), (720, 'two times (round|around)'), (1080, 'three (full|whole|complete) (spins|circles|rotations)'), (1080, 'three times (round|around)'), (45, 'half a quarter turn'),
)
NAMED_TURN = (
    '{V} through {N} {D}', '(execute|pull|complete|carry out|accomplish|dance) {N} {D}', '{D} {V} {N}', '{V} {D} (for|through|over) {N}', '(bust out|put in|show me|treat us to) {N} {D}', '{V} {N} over your {side} (shoulder|wheel|flank)', 'spin your chassis {N} {D}',
    '(nicely|neatly|smoothly|briskly|elegantly) {V} {N} {D}',
    '(do|make|give me|show us|let us see|try|take) {N} {D}', '(do|make|give me|show us|let us see|try|take) {N}, {D}', '{D}: {N}', '{V} {N}, {D} please', '{V} {D}, {N} please', '(can you do|I want|we want|how about) {N} {D}', '{N} to your {side}', '{N} (going|turning|spinning) {D}', 'to the {side}, {N}', '{V} to the {side}, {N}', '{V} to the {side} {N}',
)
AROUND = (
    'turn (it|the robot|the base|the machine|the thing|him|her|this) (around|round)', '(turn|spin|swing|whip|flip) (yourself |it |)(right |)(around|round)( now| please| for me|)', '(turn|face|look) (right |)(the other way|the opposite way)( round|)( now| please|)', 'get turned (around|round)', 'have it turned (around|round)', 'go (and |)turn (around|round)', '(around|right about|about) (you go|with you|turn|face)',
    'pull a (u-turn|u-ey|uey|one eighty)', 'bang a (u-ey|uey)', 'do a volte-face', 'go about', 'put about', 'wheel (about|round)', 'make an about turn', 'face backwards', 'face (where you came from|behind you)',
    'look back (where|to where) you came from', 'show me your (back|tail|rear)', 'rotate by half', 'end up facing the other way', 'swap your front and your back', 'point the other way', 'invert your (heading|orientation)',
    'put your nose where your tail is', 'reorient yourself the opposite way', 'present your (back|stern|rear)', 'swivel (round|around) to look behind', 'twirl round to the other side',
)
AROUND_SIDE = ('(pull|bang) a (u-ey|uey) {D}', '(come|put|wheel|go) about {D}', 'over your {side} shoulder turn back', 'about turn by the {side}', 'do a volte-face {D}', 'swap front and back, going {D}', 'invert your heading {D}')
DRIVE_VERBS = unheld(DRIVE_VERBS, ('drive', 'driving'))
BACKWARD_VERBS = unheld(BACKWARD_VERBS, ('reverse', 'reversing'))
TURN_VERBS = unheld(TURN_VERBS, ('turn', 'turning'))
SMALL_TURN = tuple(words for words in SMALL_TURN if not set(HELD_WORDS) & set(words.split()))
