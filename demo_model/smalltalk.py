# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What is said to a robot that is no command for its tools, and the plain answers."""

from __future__ import annotations

import random

from demo_model import wordings_talk as more
from demo_model.filling import noun_slots
from demo_model.held_apart import apart
from demo_model.phrasing import TrainDraws, expand, open_words, pick, random_name
from demo_model.tools import Tool
from demo_model.wordings_seventh import MORE_FEATS
from demo_model.wordings_sixth import FEATS

NO_TOOL = 'Sorry, I have no tool for that.'
GREETING = 'Hello! What can I do for you?'
FINE = 'I am fine, thank you.'
UNIT_UNKNOWN = "I don't know that unit. I can use {units}."
SIDEWAYS = "I can't drive sideways. I can drive forward or backward, or turn."
STOP = "I can't stop a motion from here. Please use the stop button or cancel."

# (things said, answer); the second list of each is kept out of training
CHAT: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (('hello', 'hi', 'hey', 'hello (robot|there|{name})', 'hi (robot|there)', 'hey (you|robot|{name})', 'good (morning|afternoon|evening|day)', 'good (morning|evening), robot',
      'hello, how is it going', 'hi, are you there', 'hello, can you hear me', 'hallo', 'howdy', 'hey, what is up', 'yo', 'hello again', 'are you there', 'anybody home', 'hello hello', 'hi again', 'hey there', 'hello my friend', 'hi {name}', 'good to have you here', 'hello, robot', 'hello, I am back', 'morning', 'evening', 'hey robot', 'welcome', 'ahoy', 'hello world', 'test', 'testing', 'wake up', 'hello, is it on', 'are you awake', 'can you hear me', 'are you ready', 'are you listening'),
     ('greetings, robot', 'hiya', 'good to see you', 'salutations'), GREETING),
    (('thank you', 'thanks', 'thanks a lot', 'thank you (very much|robot|{name})', 'many thanks', 'thanks, that is all', 'great, thanks', 'perfect, thank you', 'ok thanks', 'cheers',
      'thank you so much', 'thanks for your help', 'that was kind of you', 'that helped, thanks', 'thx', 'ty', 'thanks robot', 'thank you for that', 'I thank you', 'thanks again', 'very kind', 'thank you, robot', 'thanks {name}', 'thanks, good robot'),
     ('much obliged', 'thanks a million', 'I am grateful'), 'You are welcome.'),
    (('well done', 'good job', 'great', 'nice', 'good robot', 'excellent', 'perfect', 'very good', 'good work', 'you are great', 'I like you', 'nice work', 'awesome', 'cool', 'brilliant', 'bravo',
      'you did that well', 'that was good', 'I love you', 'you are a good robot', 'amazing', 'wonderful', 'super', 'great job', 'nicely done', 'that was great', 'fantastic', 'you are clever', 'you are nice', 'you are smart', 'you are funny', 'not bad', 'lovely', 'that is right', 'correct', 'I am happy with you', 'good boy', 'impressive'),
     ('splendid', 'what a fine robot you are', 'you are the best'), 'Thank you.'),
    (('bye', 'goodbye', 'see you', 'good night', 'see you (later|tomorrow|soon)', 'bye bye', 'bye robot', 'farewell', 'until tomorrow', 'I am leaving now', 'good night, robot', 'so long', 'see ya', 'I have to go', 'I must go now', 'have a good night', 'bye, see you', 'ciao', 'talk to you later', 'that is all, bye', 'sleep well'),
     ('take care', 'catch you later'), 'Goodbye.'),
    (('who are you', 'what are you', "what's your name", 'what is your name', 'do you have a name', 'are you a robot', 'are you human', 'who am I talking to', 'tell me about yourself',
      'introduce yourself', 'which model are you', 'are you an AI', 'are you gemma', 'what kind of model are you', 'who made you', 'how big are you', 'how do you work', 'are you chatgpt',
      'what model is this', 'do you run on this robot', 'are you alive', 'are you real'),
     ('explain who you are', 'what sort of machine are you', 'what should I call you'), 'I am a small language model that runs on this robot.'),
    (('how are you', 'how are you doing', 'how do you feel', 'are you ok', 'are you all right', 'how is your day', "how's it going", 'are you happy', 'is everything fine', 'are you well',
      'do you feel good', 'how are you today', 'how was your day'),
     ('how are things', 'are you feeling fine'), FINE),
    (('ok', 'okay', 'fine', 'alright', 'I see', 'good', 'right', 'sure', 'no problem', 'never mind', 'forget it', 'nothing', 'no', 'yes', 'understood', 'got it', 'aha', 'that is all', 'that will be all',
      'forget about it', 'leave it', 'let it be', 'do nothing', 'good to know', 'as you like', 'all good', 'fine by me', 'if you say so', 'that is enough', 'enough', 'done', 'we are done', 'whatever', 'no thank you', 'nope', 'yep', 'yeah', 'roger', 'agreed', 'just testing', 'maybe later', 'not now', 'no thanks', 'it is nothing'),
     ('do not bother', 'that was it'), 'Okay.'),
    (('stop', 'halt', 'stop now', 'stop it', 'freeze', 'stop moving', 'hold it', 'do not move', 'stop right there', 'stop driving', 'emergency stop', 'cancel', 'cancel that', 'abort', 'stop the robot',
      'stand still', 'stay where you are', 'stop please', 'brake', 'whoa', 'stop immediately'),
     ('cease moving', 'hold on right there', 'stop everything'), STOP),
    (('I am {name}', 'my name is {name}', 'this is {name}', 'I am called {name}', 'call me {name}', 'you can call me {name}', '{name} here', 'it is me, {name}'),
     ('people call me {name}', 'I go by {name}'), 'Nice to meet you, {name}!'),
)
_HELD_SAYINGS = tuple(said for _, held, _ in CHAT for said in held)
_MORE_SAYINGS = {answer: apart(said, _HELD_SAYINGS) for said, answer in more.MORE_CHAT}
ABILITIES = (('what can you do', 'what can you do?', 'what are you able to do', 'which tools do you have', 'what tools can you use', 'help', 'how can you help me', 'what are your abilities', 'what do you know to do',
              'list your tools', 'what commands do you know', 'what can I ask you', 'what can I tell you to do', 'what are your functions', 'can you help me', 'which commands are there', 'show me what you can do',
              'what do you do', 'tell me what you can do', 'how can I control you', 'help me', 'what is possible', 'what skills do you have'),
             ('name your capabilities', 'which things can you do for me', 'what are the options'))
QUESTIONS = (
    ('what is {n} (plus|minus|times) {n}', 'what is a {w}', 'what is the capital of {name}', 'who is {name}', 'what time is it', 'what day is it', "what's the weather like", 'will it rain tomorrow',
     'tell me a joke', 'sing a song', 'tell me a story', 'tell me about (the |){w}', 'why is the {w} {w}', 'how do I {w} a {w}', 'what does {w} mean', 'can you cook', 'make me a (coffee|sandwich|tea)',
     'bring me a (beer|coffee|drink|{w})', 'open the (door|window|fridge|{w})', 'close the (door|window|{w})', 'switch on the (light|tv|radio|{w})', 'turn on the (light|lights|tv|{w})', 'turn off the (light|lights|tv|{w})',
     'play some music', 'play (chess|football|a game) with me', 'call {name}', 'send {name} a message', 'book a (flight|table|room)', 'order a {w}', 'pick up the {w}', 'take the {w}', 'give me the {w}',
     'drive to the {place}', 'go to the {place}', 'go to {name}', 'come to me', 'follow me', 'follow {name}', 'clean the {place}', 'wash the {w}', 'find my {w}', 'where is my {w}', 'where is {name}',
     'take a picture', 'film this', 'look at the {w}', 'how much is a {w}', 'translate {w} into {w}', 'write a {w}', 'read the {w}', 'fly', 'fly (up |down |){n} metres', 'jump', 'jump {n} times', 'dance',
     'climb the stairs', 'swim', 'lift the {w}', 'throw the {w}', 'push the {w}', 'kick the ball', 'wave your hand', 'raise your arm', 'lower your arm', 'open your gripper', 'close your hand', 'nod', 'shake your head',
     'what is your battery level', 'how full is your battery', 'how fast are you', 'set the speed to {n}', 'drive faster', 'slow down', 'where are you', 'what do you see', 'what is in front of you', 'describe the room',
     'do you like {w}', 'do you know {name}', 'do you dream', 'can you see me', 'can you fly', 'can you swim', 'is there a {w} here', 'what is the meaning of life', 'I am hungry', 'I am tired', 'I am bored', 'it is cold here',
     'the {w} is broken', 'the {w} is {w}', 'my {w} is {w}', 'I like {w}', 'buy {w}', 'remember {w}', 'wait {n} seconds', 'wait for me', 'wake me at {n}', 'set a timer for {n} minutes', 'what is the square root of {n}',
     'spell {w}', 'count to {n}', 'how old are you', 'where do you come from', 'which colour is the {w}', 'change the light to {c}', 'make the light {c}', 'sort the {w}', 'search the web for {w}', 'google {w}',
     'show me the {w}', 'delete the {w}', 'print the {w}', 'save the {w}', 'reboot', 'shut down', 'switch yourself off', 'update your software', 'explain {w} to me', 'compare {w} and {w}', 'the {w} of the {w}',
     '{w}', '{w} {w}', '{w} {w} {w}', '{w} {w} {w} {w}', 'is {name} at home', 'how far is it to the {place}', 'how far can you drive', 'how long is a {w}', 'how many {w} are there', 'park in the {place}', 'leave the {place}',
     'enter the {place}', 'drive to room {n}', 'go to position {n}, {n}', 'drive around the {w}', 'drive in a circle', 'drive a square', 'draw a {w}', 'drive through the door', 'push the button', 'ring the bell',
     'drive behind {name}', 'go upstairs', 'take the elevator', 'vacuum the {place}', 'drive to x {n}, y {n}', 'go to coordinates {n} {n}', 'drive to {n}, {n}', '{n}', '{n} {n}', '???', '...', 'asdf', 'qwertz', 'asdf {w}', 'lorem ipsum', 'bla bla', 'hm', 'xyz {n}', 'drive me crazy', 'turn the page', 'turn on', 'turn off', 'turn into a {w}', 'turn up the {w}', 'turn down the {w}',
     'move the {w}', 'move the {w} to the {place}', 'say what', 'what did you say', 'back to {w}', 'what is left', 'is that right', 'go away', 'go to sleep', 'come back later', 'run a {w}', 'go on strike', 'head of {w}', 'am I right', 'how far is {n} metres', 'what is {n} degrees', 'how long is {n} feet',
     'convert {n} metres to feet', 'is {n} metres far', 'how many metres did you drive', 'what is the speed limit', 'the {w} is {n} metres long', 'it is {n} degrees outside', 'I am {n} feet tall', 'what do you charge', 'who is in charge', 'is the dock free', 'where is the dock', 'what is a dock', 'water the plants', 'feed the {w}', 'walk the dog', 'do my homework', 'solve {n} + {n}', 'what is {n} + {n}', '{n} + {n}', 'undock'),
    ('recite a poem', 'how high is the {w}', 'paint the {w}', 'iron my shirts', 'get me some {w} from the {place}', 'drive over to {name}', 'what happened in {n}', 'do you believe in {w}', 'unlock the {w}', 'fold the {w}',
     'have you met {name}', 'sell the {w}', 'is it late', 'guide {name} to the {place}', 'measure the {w}', 'who won the {w}', 'cut the {w}', 'knock on the door', 'check the {w}', 'deliver this to {name}'),
)
ODD_UNITS = ('kilometres', 'km', 'kilometers', 'miles', 'mile', 'yards', 'yard', 'yd', 'light years', 'steps', 'laps', 'blocks', 'nautical miles', 'fathoms', 'tiles', 'lengths', 'robot lengths', 'micrometres')

_QUESTIONS = (*QUESTIONS[0], *apart(more.MORE_QUESTIONS, QUESTIONS[1]))
_FEATS = apart((*FEATS, *MORE_FEATS, *MORE_FEATS), QUESTIONS[1])
_FEATS_SHARE = 0.2                       # of questions in training


def chat(rng: random.Random, held: bool) -> tuple[str, str]:
    """A greeting or the like, and the answer."""
    said, said_held, reply = CHAT[int(rng.random() * len(CHAT))]
    said += _MORE_SAYINGS.get(reply, ())
    name = random_name(rng)
    text = expand(pick(rng, said_held if held else said), rng, lambda slot: name)
    return text, reply.replace('{name}', name)


def abilities(tools: list[Tool], rng: random.Random, held: bool) -> tuple[str, str]:
    """The question what the robot can do; the answer names the tools in their order."""
    text = pick(rng, ABILITIES[1 if held else 0])
    names = [tool.name for tool in tools]
    if not names:
        return text, 'I have no tools here, so I can only talk a little.'
    if len(names) == 1:
        return text, f'I can use this tool: {names[0]}.'
    return text, 'I can use these tools: ' + ', '.join(names[:-1]) + f' and {names[-1]}.'


def question(rng: random.Random, held: bool) -> str:
    """Something that no motion tool can do. The caller checks that no tool of its set fits."""
    def slot(name: str) -> str:
        return pick(rng, open_words(rng)) if name == 'w' else noun_slots(rng)[name]
    said = QUESTIONS[1] if held else _QUESTIONS
    if isinstance(rng, TrainDraws) and rng.random() < _FEATS_SHARE:
        said = _FEATS
    text = expand(pick(rng, said), rng, slot)
    return text + '?' if text.startswith(('what', 'who', 'where', 'how', 'is ', 'do ', 'can ', 'why')) and rng.random() < 0.5 else text
