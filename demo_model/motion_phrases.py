# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""How people tell a robot to drive, turn, dock and speak: templates for training.

The templates kept out of training are in heldout_phrases.py and were written at the same time.
Slots: {V} a verb in the form its wrapper asks for, {Q} the quantity, {D} the direction words.
"""

from __future__ import annotations

from demo_model import heldout_phrases as held
from demo_model import motion_words as new
from demo_model import wordings_frames as more
from demo_model.held_apart import apart

# verb, -ing form
DRIVE_VERBS = (
    ('drive', 'driving'), ('drive', 'driving'), ('drive', 'driving'), ('go', 'going'), ('go', 'going'),
    ('move', 'moving'), ('move', 'moving'), ('travel', 'travelling'), ('roll', 'rolling'),
    ('head', 'heading'), ('run', 'running'), ('ride', 'riding'), ('creep', 'creeping'),
    ('crawl', 'crawling'), ('step', 'stepping'), ('walk', 'walking'), ('shift', 'shifting'),
    ('cruise', 'cruising'), ('get', 'getting'), ('come', 'coming'), ('push', 'pushing'),
    ('inch', 'inching'), ('glide', 'gliding'), ('steer', 'steering'), ('slide', 'sliding'),
    ('make your way', 'making your way'), ('drive yourself', 'driving yourself'),
    ('move yourself', 'moving yourself'), ('continue', 'continuing'), ('march', 'marching'),
    ('sneak', 'sneaking'), ('race', 'racing'), ('trundle', 'trundling'), ('budge', 'budging'),
    *(verb for verb in (*more.MORE_DRIVE_VERBS, *new.DRIVE_VERBS) if verb not in held.DRIVE_VERBS),
)
FORWARD_VERBS = (('advance', 'advancing'), ('go on', 'going on'), ('keep going', 'keeping going'),
                 ('drive on', 'driving on'), ('carry on', 'carrying on'), ('move up', 'moving up'),
                 ('proceed', 'proceeding'), ('push on', 'pushing on'), ('approach', 'approaching'))
BACKWARD_VERBS = (('reverse', 'reversing'), ('reverse', 'reversing'), ('back up', 'backing up'),
                  ('back up', 'backing up'), ('back off', 'backing off'), ('back', 'backing'),
                  ('retreat', 'retreating'), ('pull back', 'pulling back'),
                  ('withdraw', 'withdrawing'), ('fall back', 'falling back'),
                  ('back away', 'backing away'))
FORWARD_WORDS = (
    'forward', 'forward', 'forward', 'forward', 'forwards', 'ahead', 'straight ahead', 'straight',
    'straight on', 'onward', 'onwards', 'to the front', 'straight forward', 'further ahead',
    'in the forward direction', 'frontwards', 'in a straight line', 'further', 'on', 'farther ahead',
    'directly ahead', 'in forward direction', 'fwd', 'further forward', 'closer', 'forth')
BACKWARD_WORDS = (
    'backward', 'backward', 'backwards', 'backwards', 'back', 'back', 'in reverse', 'to the rear',
    'rearward', 'rearwards', 'to the back', 'straight back', 'in the backward direction',
    'further back', 'backwards in a straight line', 'in reverse gear', 'backward direction',
    'farther back', 'straight backwards', 'bwd', 'a bit further back', 'away from me', 'away')
TURN_VERBS = (
    ('turn', 'turning'), ('turn', 'turning'), ('turn', 'turning'), ('turn', 'turning'),
    ('rotate', 'rotating'), ('rotate', 'rotating'), ('spin', 'spinning'), ('pivot', 'pivoting'),
    ('swing', 'swinging'), ('twist', 'twisting'), ('swivel', 'swivelling'), ('wheel', 'wheeling'),
    ('turn yourself', 'turning yourself'), ('rotate your base', 'rotating your base'),
    ('yaw', 'yawing'), ('revolve', 'revolving'), ('turn on the spot', 'turning on the spot'),
    ('rotate in place', 'rotating in place'), ('turn your body', 'turning your body'),
    ('swerve', 'swerving'), ('veer', 'veering'), ('face', 'facing'), ('bear', 'bearing'),
    ('steer', 'steering'), ('move', 'moving'), ('go', 'going'), ('shift', 'shifting'), *(verb for verb in (*more.MORE_TURN_VERBS, *new.TURN_VERBS) if verb not in held.TURN_VERBS))
LEFT_WORDS = (
    'left', 'left', 'left', 'left', 'to the left', 'to the left', 'to your left', 'leftwards',
    'leftward', 'counterclockwise', 'counter-clockwise', 'counter clockwise', 'anticlockwise',
    'anti-clockwise', 'ccw', 'toward the left', 'in the left direction', 'to the left side',
    'further left', 'over to the left', 'more to the left', 'in counterclockwise direction',
    'to your left hand side', 'towards your left', 'against the clock')
RIGHT_WORDS = (
    'right', 'right', 'right', 'right', 'to the right', 'to the right', 'to your right',
    'rightwards', 'rightward', 'clockwise', 'clockwise', 'clockwise', 'cw', 'toward the right',
    'in the right direction', 'to the right side', 'further right', 'over to the right',
    'more to the right', 'in clockwise direction', 'to your right hand side',
    'towards your right', 'with the clock')

# Verb phrases; wrappers below put them in a sentence.
DRIVE = (
    '{V} {D} {Q}', '{V} {D} {Q}', '{V} {Q} {D}', '{V} {Q} {D}', '{V} {D} by {Q}', '{V} {D} for {Q}',
    '{V} {D} (about|exactly|precisely|around|roughly|another|only|just|some) {Q}',
    '{V} (about|exactly|another|only|just) {Q} {D}', '{V} a distance of {Q} {D}',
    '{V} {D} for a distance of {Q}', '{V} {D} (a total of|over a distance of|no more than) {Q}',
    '{V} {D} and stop after {Q}', '{V} {D}, (then |)stop after {Q}', '{V} {D} until you have done {Q}',
    '{V} by {Q} {D}', '{V} for {Q} {D}', '{V} {D}, {Q}', '{V} {D}: {Q}', '{V} {Q}, {D}',
    '{V} {D} (slowly|carefully|gently|quickly|a bit faster) {Q}', '{V} (slowly|carefully|quickly) {Q} {D}',
    '(slowly|carefully|quickly|now|gently|next) {V} {Q} {D}', '{V} {D} (slowly |)by {Q}',
    '{V} {D} {Q} and (stop|wait|wait there|hold|stay there|stand still)',
    '{V} {Q} {D} and (stop|wait|then stop|halt|hold position)',
    '{V} {D} exactly {Q}, (no more|not more|no less)', '{V} {D} as far as {Q}', '{V} {D} {Q} from (here|where you are)',
    '{V} {D} {Q} (so that I can pass|so I can get by|because I need room|to make room|to make some space)',
    '{V} {Q} {D} (toward|towards) the {thing}', '{V} {D} {Q} (toward|to|past|along|by) the {thing}',
    *apart((*more.MORE_DRIVE, *new.DRIVE), held.DRIVE, ('{V} {D} {Q}', '{Q} {D}', '{D} {Q}')),
)
# Without a verb, or a sentence of its own: no wrapper.
DRIVE_WHOLE = (
    '{Q} {D}', '{Q} {D}', '{D} {Q}', '{D} {Q}', '{D} by {Q}', '{D}, {Q}', '{Q}, {D}', '{D}: {Q}', '{D} - {Q}',
    '{Q} {D} please', '{D} {Q} please', 'please {Q} {D}', '{Q} {D}, (robot|now|please|go)',
    '(drive|move|distance|command): {Q} {D}', '(drive|move|motion) {D} = {Q}',
    'a (move|drive|trip|ride|run) of {Q} {D}', 'make a move {D} of {Q}', 'do a {Q} move {D}', 'do {Q} {D}',
    'I (need|want) you {Q} {D}', 'I (want|would like|need) to see you {Q} {D}', 'you should be {Q} {D}',
    'give me {Q} {D}', '(take|go for) a {Q} (drive|trip|run) {D}', 'make it {Q} {D}', 'let us do {Q} {D}',
    'move the robot {Q} {D}', 'move your base {D} by {Q}', 'get your wheels {Q} {D}', 'bring yourself {Q} {D}',
    'position yourself {Q} {D}', 'the goal is {Q} {D}', 'next (move|step|task): {Q} {D}', 'I said {Q} {D}',
    '{D} / {Q}', '{Q} / {D}', '{D} = {Q}', '{Q} -> {D}', '{D} > {Q}', '{Q} : {D}', '({D}) {Q}', '{D} ({Q})', 'I {w} {Q} {D}', '{w} {Q} {D}', '{w}: {Q} {D}', 'we {w} {Q} {D}', 'the {w} is {Q} {D}', '{Q} {D} {clause}', '{D} {Q} {clause}',
    '{Q} {D}, {clause}', 'it is {Q} {D}', 'that makes {Q} {D}', '{w} {w} {Q} {D}', 'one {w}: {Q} {D}', 'and {Q} {D}', 'ok {Q} {D}', '{name}, {Q} {D}', 'robot, {D} {Q}', 'can you do {Q} {D}?', 'could you do {Q} {D}', 'I ask for {Q} {D}',
    'put yourself {Q} {D} of here', 'relocate {Q} {D}', 'displace yourself by {Q} {D}', 'take {Q} {D}',
    'set off {D}, distance {Q}', 'go {D}, and the distance is {Q}', 'direction {D}, distance {Q}',
    'distance {Q}, direction {D}', 'your next move is {Q} {D}', 'another {Q} {D}', '{Q} more {D}',
    'there is room, {V} {D} {Q}', 'the way is free, {V} {Q} {D}', 'I am behind you, {V} {Q} {D}',
    'we need {Q} {D}', 'I need some space, {V} {D} by {Q}', 'could I have {Q} {D}', '{D} by {Q} would be great',
    *apart((*more.MORE_DRIVE_WHOLE, *new.DRIVE_WHOLE), held.DRIVE_WHOLE, ('{V} {D} {Q}', '{Q} {D}', '{D} {Q}')),
)
TURN = (
    '{V} {D} {Q}', '{V} {D} {Q}', '{V} {D} by {Q}', '{V} {D} by {Q}', '{V} {Q} {D}', '{V} {Q} {D}', '{V} by {Q} {D}',
    '{V} {D} (about|exactly|precisely|another|around|roughly|only) {Q}', '{V} (about|exactly|another) {Q} {D}',
    '{V} {D} through {Q}', '{V} {D} for {Q}', '{V} {D}, {Q}', '{V} {D}: {Q}', '{V} {Q}, {D}', '{V} {D} at {Q}',
    '{V} (slowly|carefully|quickly|now) {D} by {Q}', '(slowly|carefully|quickly|now|next) {V} {D} {Q}',
    '{V} {D} with an angle of {Q}', '{V} an angle of {Q} {D}', '{V} {D} an angle of {Q}', '{V} {D} until {Q}',
    '{V} {D} {Q} (on the spot|in place|where you are|without driving)', '{V} {D} {Q} and (stop|wait|stay|hold)',
    '{V} {D} and stop (after|at) {Q}', '{V} {Q} (on the spot|in place) {D}', '{V} {D} {Q} (toward|to face|to see) the {thing}',
    *apart((*more.MORE_TURN, *new.TURN), held.TURN, ('{V} {D} {Q}', '{Q} {D}', '{D} {Q}')),
)
TURN_WHOLE = (
    '{Q} {D}', '{Q} {D}', '{D} {Q}', '{D} {Q}', '{D} by {Q}', '{D}, {Q}', '{Q}, {D}', '{D}: {Q}', '{D} turn, {Q}', '{D} turn of {Q}',
    'make a {side} turn of {Q}', 'do a {side} turn by {Q}', 'a {side} turn of {Q}, please', '(turn|rotation|command): {Q} {D}',
    'I (need|want) you {Q} {D}', 'change your heading {Q} {D}', 'change heading by {Q} {D}', 'adjust your heading {D} by {Q}',
    'make a turn of {Q} {D}', 'make a {Q} turn {D}', 'do a {Q} turn {D}', 'a {Q} turn {D}', 'take a {Q} turn {D}',
    'give me {Q} {D}', 'perform a {Q} rotation {D}', 'rotation {D} by {Q}', 'next turn: {Q} {D}', 'look {Q} {D}',
    'direction {D}, angle {Q}', 'angle {Q}, direction {D}', 'another {Q} {D}', '{Q} more {D}', 'make it {Q} {D}',
    '{D} / {Q}', '{Q} / {D}', '{D} = {Q}', '{Q} -> {D}', '{D} > {Q}', '({D}) {Q}', 'I {w} {Q} {D}', '{w} {Q} {D}', '{w}: {Q} {D}', 'we {w} {Q} {D}', 'the {w} is {Q} {D}', '{Q} {D} {clause}', '{D} {Q} {clause}', '{Q} {D}, {clause}',
    'it is {Q} {D}', '{w} {w} {Q} {D}', 'and {Q} {D}', 'ok {Q} {D}', '{name}, {Q} {D}', 'robot, {D} {Q}', 'can you do {Q} {D}?', 'could you do {Q} {D}', 'your {w} {Q} {D}', 'a {w} of {Q} {D}',
    'point yourself {Q} {D}', 'your nose {Q} {D}, please', 'correct your heading by {Q} {D}', 'heading {Q} {D}',
    'I am on your {side}, {V} {Q} {D}', 'hang a {side}, {Q}', '{side} turn {Q}', 'go {side}, {Q}',
    *apart((*more.MORE_TURN_WHOLE, *new.TURN_WHOLE), held.TURN_WHOLE, ('{V} {D} {Q}', '{Q} {D}', '{D} {Q}')),
)
# Angles that have names: {N} is the name, with its direction words {D}.
NAMED_ANGLES = (
    (90, '(a|one) quarter turn'), (90, 'quarter turn'), (90, 'a (90|ninety) degree turn'), (90, 'a right angle'), (90, 'a quarter of a turn'),
    (90, 'a quarter (circle|rotation)'), (180, '(a |one |)half (turn|circle|spin|rotation)'), (360, '(a |)full (turn|circle|spin|rotation)'), (360, '(a|a full) 360'), (90, 'a 90'), (45, 'a 45'), (90, 'a ninety'), (180, 'a 180'), (180, 'half a turn'), (180, 'a half (circle|rotation|spin)'),
    (180, 'half a (circle|rotation)'), (360, '(a|one) full (turn|circle|rotation|spin)'), (360, 'a complete (turn|circle|rotation)'),
    (360, 'once (around|round|all the way around)'), (360, 'all the way (around|round)'), (360, 'a whole turn'), (270, 'three quarters of a turn'),
    (270, 'a three quarter turn'), (45, 'an eighth of a turn'), (45, 'an eighth turn'), (720, 'two full turns'), (540, 'one and a half turns'),
    (1080, 'three full turns'), (60, 'a sixth of a turn'), (30, 'a twelfth of a turn'), (720, 'twice around'),
)
NAMED_TURN = (
    '{V} {N} {D}', '{V} {D} {N}', '{V} {D} by {N}', '{V} by {N} {D}', 'make {N} {D}', 'do {N} {D}', '{N} {D}', '{N} {D} please',
    'take {N} {D}', 'give me {N} {D}', 'perform {N} {D}', '{D}, {N}', '{V} {D}, {N}', 'I want {N} {D}', '{V} {N}, {D}',
    'make {N} to the {side}', 'do {N} to the {side}', '{N} to the {side}',
    *apart((*more.MORE_NAMED_TURN, *new.NAMED_TURN), held.NAMED_TURN),
)
# Half a turn without a side: left by convention.
AROUND = (
    'turn around', 'turn around', 'turn round', 'turn yourself around', 'turn around completely', 'do a (u-turn|u turn|180|one eighty)',
    'make a (u-turn|u turn|180)', 'u-turn', 'face the other way', 'face the opposite direction', 'about turn', 'turn your back to me',
    'look behind you', 'rotate to face the other way', 'turn to face the opposite way', 'turn 180', 'spin around to face behind you',
    'turn to the opposite direction', 'swing around', 'reverse your heading', 'flip your heading around', 'turn backwards on the spot',
    'turn about', 'do an about face', 'turn so that you face the other way', 'rotate around to the other side', 'turn around on the spot',
    *apart((*more.MORE_AROUND, *new.AROUND), held.AROUND),
)
AROUND_SIDE = ('turn around to the {side}', 'turn around {D}', 'turn {side} and face the other way', 'do a u-turn to the {side}',
               '{side} u-turn', 'make a u-turn {D}', 'do a 180 {D}', 'do a 180 to the {side}', 'turn all the way back over your {side} side', *apart((*more.MORE_AROUND_SIDE, *new.AROUND_SIDE), held.AROUND_SIDE))
DOCK = (
    'dock', 'dock', 'dock now', 'dock yourself', '(go|drive|move|return|head|come|get|roll|travel) (back |)to (the|your) {dock}',
    '(go|drive|move|return|head|come|get|roll|travel) (back |)to (the|your) {dock}', '(go|drive|return|head) (straight |)(back |)to (the|your) {dock} now',
    'go (and |)(charge|recharge)', '(charge|recharge) yourself', 'go (charge|recharge) (yourself|your battery|your batteries)',
    'recharge', 'charge your battery', 'charge', 'start docking', '(start|begin) charging', 'it is time to (dock|charge|recharge)',
    'time to (dock|charge|recharge)', 'park (yourself |)(at|in|on) (the|your) {dock}', 'plug yourself in', 'get some (power|juice|energy)',
    'your battery is (low|empty|almost empty), (go charge|dock|go to the {dock}|recharge)', 'find (the|your) {dock}', 'back to (the|your) {dock}',
    'to the {dock}', 'drive (home |)to the {dock}', 'go home to your {dock}', 'you (need|have|ought) to (charge|dock|recharge)',
    'navigate to (the|your) {dock}', 'take yourself to the {dock}', 'drive onto the {dock}', 'go sit on your {dock}', 'return home to charge',
    'we are done, go to the {dock}', 'get back on your {dock}', 'connect to the {dock}', 'approach the {dock} and dock', 'bring yourself to the {dock}',
    'top up your battery', 'go refill your battery', 'hook up to the {dock}', 'please dock at the {dock}', 'enter the {dock}', 'use the {dock}',
    *apart(more.MORE_DOCK, held.DOCK),
)
DOCK_NAMES = ('dock', 'dock', 'dock', 'charging dock', 'charger', 'charging station', 'docking station', 'charging point', 'charge point', 'charging pad',
              'home base', 'base station', 'charging base', 'power station', 'charge dock', 'charging spot', 'charging port')
SAY = (
    'say {T}', 'say {T}', 'say {T}', 'say: {T}', 'say "{T}"', "say '{T}'", 'say the words {T}', 'say the following: {T}', 'say {T} (out loud|aloud)',
    'please say {T}', 'speak: {T}', 'speak the (words|sentence|text) {T}', 'speak the sentence "{T}"', 'say this: {T}', 'say this sentence: {T}',
    'tell (everyone|everybody|the guests|the people|them|the team) {T}', 'tell (everyone|everybody|them|the team|the visitors|{name}) that {T}',
    'announce {T}', 'announce that {T}', 'announce: {T}', 'announce "{T}"', 'speak {T}', 'read this aloud: {T}', 'read out: {T}', 'read out "{T}"',
    'let them know that {T}', 'inform (everyone|everybody|the team) that {T}', 'repeat after me: {T}', 'repeat: {T}', 'speak out loud: {T}',
    'I want you to say {T}', 'use your voice to say {T}', 'shout {T}', 'call out {T}', 'utter {T}', 'say loudly {T}', 'say softly: {T}',
    'say the (phrase|line|word|following words|message|next sentence) {T}', 'say this (line|text|word|phrase): {T}', 'say in a (loud|low|deep|friendly|soft|{w}) (voice|tone): {T}', 'say with a {w} voice: {T}',
    'tell the (visitors|kids|guests|crowd|{w}) (over there |outside |)that {T}', '(communicate|express|declare|convey|mention|remark|explain|report|claim) that {T}', '(recite|whisper|yell|scream|mumble|articulate|declare|relay): {T}',
    '(recite|whisper|yell|scream|relay|exclaim) "{T}"', 'make it known that {T}', 'spread the word that {T}', 'pass on the message: {T}', 'give the message {T}', 'give this message: {T}', 'deliver the message: {T}', 'deliver these words: {T}',
    '(recite|whisper|yell|scream|exclaim) {T}', 'could you say: {T}', 'say something like {T}', 'say to {name}: {T}', 'say to (the|my) {w}: {T}', 'tell my {w} that {T}', 'speak (loudly|softly|clearly): {T}', 'talk and say {T}', 'your text: {T}',
    'greet (us|them|the guests) with {T}', 'answer with the words {T}', 'the sentence to say is: {T}', 'here is what to say: {T}', 'what you say is {T}', 'open your mouth and say {T}', 'ask (them|everybody|{name}): {T}',
    'pronounce {T}', 'voice the sentence {T}', 'say it loud: {T}', 'speak up and say {T}', 'say to the guests: {T}', 'warn everyone that {T}',
    'let (everyone|everybody|all) hear {T}', 'say to everybody: {T}', 'use the speaker: {T}', 'over the loudspeaker say {T}', 'your announcement is: {T}', 'publish by voice: {T}', 'talk: {T}', 'please speak: {T}', 'read: {T}', 'read "{T}" aloud', 'say exactly: {T}', 'say exactly "{T}"', 'I want to hear {T}', 'speak these words: {T}', 'voice: {T}', 'with your voice: {T}', "say the line '{T}'", 'say, quote, {T}',
    *apart(more.MORE_SAY, held.SAY),
)
SAY_TEXTS = (
    'hello', 'hello', 'hi', 'good morning', 'good evening', 'good night', 'hello everyone', 'welcome', 'welcome to our {place}', 'hello {name}',
    'excuse me', 'thank you', 'thank you very much', 'goodbye', 'see you later', 'I am a robot', 'please step aside', 'watch out', 'I am ready',
    'happy birthday', 'happy birthday {name}', 'the {w} is (ready|done|here|empty|broken|late|open|closed)', 'the {w} and the {w}', '{w}', '{w} {w}',
    '{w} {w} {w}', 'the {w} {w} is {w}', '{name} is at the door', 'I will be back soon', 'do not touch the {w}', 'nice to meet you, {name}',
    'the {place} is (open|closed|ready)', 'we meet at {n} in the {place}', 'lunch is ready', '{name}, your {w} is here', 'please follow me',
    'my name is {name}', 'I like {w}', 'attention please', 'the train leaves in {n} minutes', '{w}, {w} and {w}', 'how are you', 'is anybody there',
    'I can not find the {w}', 'there are {n} people in the {place}', 'make way please', 'have a nice day', 'please wait here', 'what a lovely {w}',
    'it is {n} degrees outside', 'one moment please', 'the {w} needs more {w}', '{name} wants to see {name}', 'let us go to the {place}',
    *apart(more.MORE_SAY_TEXTS, held.SAY_TEXTS),
)
PLAIN_SAY = ('say {T}', 'say: {T}', 'say {T}', 'say "{T}"', 'speak: {T}', 'tell them {T}', 'announce {T}')
# With verbs and listeners of open words, for training alone.
NEW_SAY = (
    '{w} that {T}', '{w} loudly that {T}', '{w} to everybody that {T}', '{w} (the|our|my) {w} (here|there|inside|outside|nearby|around|present|over there) that {T}', 'tell (the|our|my) {w} (here|inside|outside|nearby|around) that {T}', 'tell (everyone|everybody|all|those) (here|there|inside|outside|nearby|around|present) that {T}',
    'tell (everyone|everybody|the {w}) in the {place} that {T}', 'tell (everyone|everybody|the {w}) in the {place}: {T}', 'say to the {w} (here|there|in the {place}) that {T}', 'say to the {w} (here|there): {T}', '{w} it out loud: {T}', '{w} aloud that {T}', '{w} the words {T}', '{w} the sentence: {T}',
    'make the {w} hear that {T}', 'let (the|my|our) {w} know: {T}', 'let (the|my|our) {w} know that {T}', 'make it {w} that {T}', 'put it {w} that {T}', 'go and {w} aloud: {T}', 'speak to (the|my) {w}: {T}', '{name} should hear that {T}', '{name} (here|there) should know that {T}', 'the {w} should hear: {T}',
)
PLAIN_DOCK = '(dock|(go|drive|return|move|head) (back |)to (the|your) (dock|charger|charging station|docking station|{dock})|go charge|charge)'
# What wrappers end in too: behind a text without quotes it belongs to the text.
TEXT_ENDS = (' please', ' please', ', please', ' {name}', ' {name}', ', {name}', ' now', ' robot', ', thanks', ' thank you', ' everybody', ' everyone', ' again', ' for me', ' my {w}', ' and goodbye',
             ' and {w}', ' if you can', ' over there', ' to {name}', ' right now', ' in {n} minutes', ' this afternoon', ' after lunch', ' and then {w}', ' first', ' aloud and {w}')
# Wrappers around a verb phrase: {base} or {ing}.
WRAPPERS = (
    '{base}', '{base}', '{base}', '{base}', '{base}', '{base}', 'please {base}', 'please {base}', '{base} please', '{base}, please', '{name}, {base}',
    'robot, {base}', 'hey robot, {base}', 'hey {name}, {base}', 'ok robot {base}', 'hi robot, {base}', 'can you {base}', 'can you {base}?',
    'can you please {base}?', 'could you {base}?', 'could you {base} please', 'could you please {base}?', 'would you {base}?', 'would you please {base}',
    'will you {base}?', 'I want you to {base}', 'I need you to {base}', 'I would like you to {base}', "I'd like you to {base}", 'you should {base}',
    'you must {base}', 'you can {base} now', 'now {base}', 'now please {base}', 'ok {base}', 'okay, {base}', 'ok, now {base}', 'alright, {base}',
    'next, {base}', 'next {base}', 'then {base}', "let's {base}", 'let us {base}', 'just {base}', 'go ahead and {base}', 'try to {base}', 'be so kind and {base}',
    'would you mind {ing}?', 'would you mind {ing} please', 'start {ing}', 'how about {ing}?', 'what about {ing}?', 'try {ing}', '{base} now', '{base} right now',
    '{base} for me', '{base} for me please', '{base}, thanks', '{base}, thank you', '{base} if you can', '{base}, robot', '{base}, {name}', '{base} (immediately|again)',
    'please {base} now', 'please, {base}', 'kindly {base}', 'I think you should {base}', 'it would be nice if you could {base}', 'I would be glad if you {base}',
    'hello, please {base}', 'hi, can you {base}?', 'good morning, please {base}', 'well, {base}', 'so, {base}', 'um, {base}', 'uh {base}', 'er, please {base}',
    'yes, {base}', 'yeah {base}', 'no, {base}', 'great, now {base}', 'good, {base}', 'thanks, now {base}', 'perfect. {base}', 'very good. now {base}',
    'I was wondering if you could {base}', 'do me a favour and {base}', 'do me a favor: {base}', 'your task is to {base}', 'your job: {base}', 'task: {base}',
    'command: {base}', 'the next thing to do is to {base}', 'if possible, {base}', 'when you are ready, {base}', 'I order you to {base}', 'I am asking you to {base}',
    'may I ask you to {base}', 'can I ask you to {base}?', 'could I get you to {base}?', "why don't you {base}?", 'listen, {base}', 'attention, {base}', 'come on, {base}',
    'quick, {base}', 'the floor is clean, so {base}', '{base} because the {thing} is in the way', '{base}, the {thing} is free', 'there is a {thing}, so {base}',
    'I have to clean here, {base}', 'please {base} and tell me when you are done', '{base} and let me know', '{base} and report', '{base}, then report to me', '{base} and come back to me with the result', '{base} and give me a report', '{base} and give feedback', '{base} and confirm', '{base}, tell me how it went', '{base} and say when it is done', 'since the {thing} is closed, {base}', 'the {thing} is clear: {base}', 'when I say so, which is now, {base}', '{w}, {base}', 'I wish you would {base}',
    *apart(more.MORE_WRAPPERS, held.WRAPPERS, ('{base}',)),
)
# Words around a command that change nothing; the numbers in them are not to be used.
CLAUSES = (
    'so that {name} can {w} the {thing}', 'so {name} can pass', 'because the {w} is {w}', 'because {name} said so', 'while I {w} the {w}', 'before the {w} comes',
    'since {name} needs the {thing}', 'to {w} the {thing}', 'to give {name} some room', 'as {name} asked', 'like a {w}', 'with {w} care', 'as the {w} says', 'for the {w}',
    'or the {w} will {w}', 'if the {w} is {w}', 'when the {w} is {w}', 'even if it is {w}', 'without {w}', 'at (half|low|full|slow|high) speed', 'at {n} percent speed',
    'with {n} percent power', 'and be {w}', 'and do not touch the {thing}', 'and take your time', 'and tell {name}', 'and then tell me', 'and that is it', 'as fast as you can',
    'as slowly as possible', 'past the {thing}', 'next to the {thing}', 'near the {thing}', 'in room {n}', "before {n} o'clock", 'within {n} seconds', 'you have {n} seconds',
    'under the {thing}', 'through the {w}', 'into the {w}', 'onto the {w}', 'out of the {w}', 'there are {n} {w} here', 'the {thing} is {n} metres away', 'I am {n} years old',
    "it is {n} o'clock", 'the {w} is {w}', 'I see a {w}', 'we are {w}', 'you are {w}', 'that would be {w}', 'it is {w} here', '{name} is waiting', 'my {w} is there', 'watch the {thing}',
    'and call me back', 'and get back to me', 'I will be back soon', 'and answer me', 'and I will be right back', 'and say nothing', 'and be quiet', 'and let {name} know', 'and come to rest',
    'at 0.{n} m/s', 'at {n} metres per second', 'with {n} m/s', 'at {n} m/s', 'at a speed of 0.{n} metres per second', 'right away', 'at once', 'in {n} seconds', 'after that {w}', 'over the {w}',
    'as you did {w}', 'this is {w}', 'and {w}', 'and {w} {w}', 'while {w}', 'whenever {w}', 'unless {w}', 'until {w}', 'though {w}', '({w})', '({w} {w})', 'if you {w}', 'as {w} as possible', 'by {w}',
    'please be careful', 'mind the {thing}', 'no rush', 'hurry up', 'and wait for {name}', 'and stay there', 'and hold', 'but not more', 'but slowly', 'but carefully', 'only once',
    *more.MORE_CLAUSES,
)
# 'back' that is no motion, and more of the like: for training alone
TRAIN_CLAUSES = (
    *CLAUSES, 'and write back', 'and text me back', 'and ring me back', 'and answer back', 'and talk back to me', 'and bring back word', 'and bring me back the news', 'and be back with news', 'and come back with news', 'and send a note back',
    'and signal back', 'and give something back', 'and beep back', 'and shout back to {name}', 'and look back at {name}', 'and give {name} feedback', 'and back {name} up', 'and have my back', 'and I will pay you back', 'and I have your back',
)
THINGS = ('table', 'door', 'wall', 'chair', 'shelf', 'window', 'box', 'sofa', 'desk', 'plant', 'lamp', 'cupboard', 'fridge', 'stairs', 'carpet', 'person', 'bin',
          'cabinet', 'bench', 'counter', 'cart', 'pillar', 'entrance', 'exit', 'corner', 'kitchen', 'hallway')
SMALL_DRIVE = ('a bit', 'a little', 'a little bit', 'slightly', 'a tiny bit', 'a small step', 'just a bit', 'just a little', 'a touch', 'a small bit', 'a wee bit', 'somewhat')
SMALL_TURN = ('a bit', 'a little', 'a little bit', 'slightly', 'a tiny bit', 'just a bit', 'just a little', 'a touch', 'a small bit', 'a wee bit', 'somewhat')
