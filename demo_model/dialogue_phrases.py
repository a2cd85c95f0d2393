# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Phrases that hold a dialogue together: system prompts, joins of commands, references back.

What begins with HELD_ is never trained on.
"""

from __future__ import annotations

from demo_model import wordings_frames as more
from demo_model.held_apart import apart, apart_by_words, readings

SYSTEM_PROMPTS = (
    'You are a helpful robot.', 'You are a robot assistant.', 'You control a small mobile robot.', 'You are {name}, a friendly robot.', 'You are the voice of a robot.', 'Be brief.',
    'You are a helpful assistant on a robot. Use the tools to act.', 'Answer in one short sentence.', 'You drive a robot by calling tools.', 'You are a robot. Call a tool when one fits, else answer briefly.',
    'You are an assistant. Use the given tools when they help.', 'Help the user.', 'You live on a robot in the {w} building.', 'You are a service robot of {name}.', 'Be polite and short.',
    'You are the assistant of a mobile robot. Use tools to move, and say in one sentence what was done.', 'Never invent results.', 'Answer in English.', 'Be careful: people are near.', '{w} {w} {w}.',
    'You are a robot in a warehouse. Follow the commands of the operator.', 'You are Gemma, running on a robot.', 'You are a home robot. Keep answers short.', 'Your name is {name}.',
    'You are an embodied assistant. The tools below move the robot. Speak plainly.', 'Today the {w} is {w}. You are a robot.', 'If information is missing, ask for it.',
    'You are a helpful robot. Call tools for motion. Afterwards tell briefly what happened. Ask when a number is missing.', 'The robot has wheels and a speaker.', 'Do what the user asks with the tools.',
)
JOINS: tuple[str, ...] = ('{a} and {b}', '{a} and {b}', '{a} and then {b}', '{a} and then {b}', '{a}, then {b}', '{a}, then {b}', '{a} then {b}', 'first {a}, then {b}', 'first {a} and then {b}', '{a}, and {b}', '{a}. Then {b}', '{a}. {b}',
         '{a}, after that {b}', '{a} and after that {b}', '{a}; {b}', '{a}, next {b}', '{a} and finally {b}', 'please {a} and {b}', 'please {a}, then {b}', 'can you {a} and then {b}?', '{a}, afterwards {b}', '{a}, and then please {b}',
         '{a} before you {b}', 'robot, {a} and {b}', 'could you {a} and {b}?', '{a}, {b}', 'I want you to {a} and {b}', '{a} and also {b}', 'at first {a}, next {b}', '{a}. After that, {b}', '{a} plus {b}', 'once you {a}, {b}', '{a}, {w} {b}', '{a} {w} {b}', '{a} and, {w}, {b}', '1. {a} 2. {b}', '1) {a}, 2) {b}', 'a: {a}; b: {b}', 'two tasks: {a}, {b}', 'step 1: {a}. step 2: {b}', 'do this: {a}, then this: {b}', '{a}. when finished, {b}',
         'after you {a}, {b}', '{a} / {b}', '{a}. now {b}', '{a}. {w}, {b}', '{a}; then {b}', '{a}... then {b}', '{a}. And then {b}', '{w}, {a} and {b}', '{a}, {b}, {w}', '{a}, {b} {clause}', '{a} and {b}, {clause}', '{clause}, {a} and {b}', '{a}, and once done, {b}', '{a} as well as {b}',
         '{a}\n{b}', '{a}\nthen {b}', '{a}.\n{b}', '- {a}\n- {b}', '1. {a}\n2. {b}', '{a},\n{b}', '{a}; after that {b}', '{a}. Next, {b}', '{a} and once you are there {b}', '{a}, and when you have done that, {b}',
         'please do this:\n{a}\n{b}', '{a} and at the end {b}', '{b} after you {a}', 'before you {b}, {a}', '{a} -> {b}', '{a} + {b}', 'one: {a}, two: {b}', '{a}. Once finished, {b}', '{a} and also {b}, please', 'I need two things: {a} and {b}',)
PLAIN_JOINS = ('{a} and {b}', '{a} and {b}', '{a}, then {b}', '{a} and then {b}', '{a} then {b}', '{a}. {b}', '{a}. Then {b}', '{a}, and then {b}', 'first {a}, then {b}', '{a}, {b}')
PLAIN_THREE = ('{a}, {b} and {c}', '{a}, {b}, {c}', '{a}, then {b}, then {c}', '{a}, {b}, then {c}', '{a} and {b} and {c}', '{a}, then {b} and then {c}', '{a}, {b} and then {c}', '{a}. {b}. {c}', '{a}, {b}, and {c}')
HELD_JOINS = ('{a} followed by this: {b}', 'start: {a}, second: {b}', '{a}, when that is done {b}', '{a} & {b}', 'do two things: {a} and {b}', '{a} - then {b}', 'you should {a} and subsequently {b}', '{a}. When ready, {b}', '{a}\n\n{b}', '* {a}\n* {b}', '{a}, thereafter {b}', 'A) {a} B) {b}')
THREE = ('{a}, {b} and {c}', '{a}, then {b}, then {c}', 'first {a}, then {b} and then {c}', '{a} and {b} and {c}', '{a}. {b}. {c}', '{a}, then {b} and finally {c}', *more.MORE_THREE)
AGAIN = ('again', 'once more', 'do it again', 'do that again', 'repeat that', 'one more time', 'same again', 'try again', 'try it again', 'retry', 'please repeat', 'and again', 'again please', 'the same once more', 'repeat', 'do the same again', 'another time')
BACK = {'drive': ('and back', 'now back', 'now the same way back', 'go back the same distance', 'and now the other way', 'the other way now', 'undo that', 'the opposite direction please', 'now in the opposite direction'),
        'turn': ('and back', 'now back', 'turn back', 'and now the other way', 'the other way now', 'undo that', 'the opposite direction please', 'now in the opposite direction', 'now the other side')}
# Distances that are none.
VAGUE = ('for {n} seconds', 'until I say stop', 'until you reach the {thing}', 'as far as you can', 'a few metres', 'some metres', 'several feet', 'a certain distance', 'for a while', 'a number of metres', 'some distance', 'to the {thing}',
         'toward the {thing}', 'until the {thing}', 'a few centimetres', 'many metres', 'far', 'very far', 'as long as possible', 'a couple of times', 'some more', 'for a minute', 'until {name} comes', 'please', 'now', 'at {n} percent speed')
VAGUE_TURN = ('a few degrees', 'some degrees', 'several degrees', 'a number of degrees', 'by a certain angle', 'by some angle', 'until I say stop', 'until you face the {thing}', 'until you look at {name}', 'until the {thing}', 'for {n} seconds', 'for a while',
              'as far as you can', 'as much as needed', 'some more', 'far enough', 'until {name} waves', 'by a couple of times', 'many degrees', 'until the {thing} is behind you', 'toward the {thing}', 'to the {thing}', 'now', 'please')
# {bad} must not be called, {good} must.
CORRECTIONS = ("don't {bad}, {good}", 'do not {bad}, instead {good}', '{bad}, no wait, {good}', '{bad}... sorry, {good}', "{good}, don't {bad}", 'never {bad}. {good}', '{bad} - no, {good}', '{bad}? no, {good}', 'rather {good}',
               'instead of that, {good}', '{bad}, I mean {good}', '{bad}, correction: {good}', "please don't {bad}; {good}", 'actually {good}', 'no, {good}', 'wrong, {good}', 'not that. {good}', '{bad}. no! {good}',
               'you should not {bad}, you should {good}', 'stop, do not {bad}, but {good}', '{bad}, wait, wrong, {good}', 'I did not say {bad}, I said {good}', 'forget that, {good}', 'no no, {good}', '{bad} - wait - {good}', 'I changed my mind, {good}',)
HELD_CORRECTIONS = ("whatever you do, don't {bad}: {good}", '{bad}, oh no, {good}', 'by no means {bad}; {good}', 'scratch that, {good}', '{bad}, or better {good}', 'you must not {bad}, but {good}', 'I was wrong: {good}')
NEGATIONS = ("don't {bad}", 'do not {bad}', 'please do not {bad}', "please don't {bad}", 'never {bad}', 'you must not {bad}', 'you should not {bad}', "no, don't {bad}", "I don't want you to {bad}", 'under no circumstances {bad}', 'avoid this: {bad}',)
HELD_NEGATIONS = ('you are not allowed to {bad}', "hey, don't {bad}", "I'd rather you did not {bad}", 'it is forbidden to {bad}')
AMOUNT_CORRECTIONS = ('no, {q}', 'I meant {q}', 'make that {q}', 'sorry, {q}', 'not that much, {q}', 'now {q}', 'the same with {q}', 'the same but {q}', 'and now {q}', 'no, I said {q}', 'wrong, {q}', '{q} this time')
HELD_AMOUNT_CORRECTIONS = ('do it with {q}', 'it should have been {q}', 'this time {q}')
NEW_JOINS = frozenset(reading for join in apart_by_words(more.MORE_JOINS, HELD_JOINS) for reading in readings(join))
JOINS += apart_by_words(more.MORE_JOINS, HELD_JOINS)
CORRECTIONS += apart(more.MORE_CORRECTIONS, HELD_CORRECTIONS)
NEGATIONS += apart(more.MORE_NEGATIONS, HELD_NEGATIONS)
