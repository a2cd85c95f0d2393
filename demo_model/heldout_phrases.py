# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Phrasings that training never sees. Never move one from here into motion_phrases.py.

Same slots as there. The evaluation draws command templates and wrappers from here alone, with numbers
that training never sees.
"""

from __future__ import annotations

DRIVE_VERBS = (('drive', 'driving'), ('go', 'going'), ('move', 'moving'), ('journey', 'journeying'), ('tootle', 'tootling'),
               ('navigate', 'navigating'), ('scoot', 'scooting'), ('nudge', 'nudging'), ('zoom', 'zooming'), ('wander', 'wandering'))
TURN_VERBS = (('turn', 'turning'), ('rotate', 'rotating'), ('spin', 'spinning'), ('reorient', 'reorienting'), ('angle', 'angling'), ('whirl', 'whirling'),
              ('circle', 'circling'), ('orient yourself', 'orienting yourself'))
DRIVE = (
    '{V} {D} something like {Q}', '{V} precisely {Q} {D} from your current position', '{V} {D}, it should be {Q}', '{V} {D} with a distance of {Q}',
    '{V} {Q} in total, {D}', '{V} {D} approximately {Q}', '{V} {D} {Q} and not a bit more', '{V} {D} the next {Q}', '{V} {D} till you have covered {Q}',
    '{V} {D} {Q} before you stop', '{V} {D} ({Q})', '{V} all of {Q} {D}', '{V} {D} {Q} over there', '{V} {D} smoothly for {Q}', '{V} {Q} {D} and pause',
    '{V} {D} {Q} beside the {thing}', '{V} {D} for around {Q}', '{V} a length of {Q} {D}', '{V} {D} a further {Q}', '{V} {D} {Q} to let {name} through',
    '{V} {D} {Q} in the direction of the {thing}', '{V} {D} until {Q} are behind you', '{V} {D} by an amount of {Q}', '{V} {D} no further than {Q}',
)
DRIVE_WHOLE = (
    '{Q} {D} if you would', 'what I want is {Q} {D}', 'your position should change {Q} {D}', 'how about {Q} {D}', '{D} you go, {Q}', 'off you go, {Q} {D}',
    'one move: {Q} {D}', 'we would like {Q} {D}', 'now {Q} {D}', 'order: {D} {Q}', 'I require {Q} {D}', 'straight away {Q} {D}', '{D} ... {Q}', '{Q} of driving {D}',
)
TURN = (
    '{V} {D} something like {Q}', '{V} {D}, it should be {Q}', '{V} {D} with {Q}', '{V} {D} approximately {Q}', '{V} {Q} in total, {D}', '{V} {D} ({Q})',
    '{V} {D} a further {Q}', '{V} {D} by an amount of {Q}', '{V} {D} {Q} without leaving your place', '{V} {D} to {Q}', '{V} {D} smoothly by {Q}',
    '{V} {D} {Q} and pause', '{V} {D} no more than {Q}', '{V} yourself {Q} {D}', '{V} the robot {D} {Q}', '{V} {D} {Q} so that you see the {thing}',
)
TURN_WHOLE = (
    '{Q} {D} if you would', 'what I want is {Q} {D}', 'your heading should change {Q} {D}', 'how about {Q} {D}', 'one turn: {Q} {D}', 'now {Q} {D}',
    'order: {D} {Q}', 'the turn is {Q} {D}', '{D} ... {Q}', 'a rotation of {Q} {D}', 'let your front point {Q} {D}', 'I require {Q} {D}',
)
NAMED_TURN = ('{V} {D} for {N}', 'please make {N} {D}', 'complete {N} {D}', 'let me see {N} {D}', 'execute {N} {D}', 'how about {N} {D}', 'now {N} {D}')
AROUND = ('turn the other way around', 'make an about turn', 'show me your back', 'turn till you look the other way', 'go round to face the opposite side',
          'please do a one hundred and eighty', 'rotate half way around', 'turn to look behind you', 'spin round to the opposite direction')
AROUND_SIDE = ('turn right round {D}', 'face the other way by turning {D}', 'take a u-turn {D}', 'turn about {D}')
DOCK = (
    'please get to the {dock}', 'make your way to the {dock}', 'I want you in the {dock}', 'be at the {dock}', 'proceed to the {dock}', 'off to the {dock}',
    'let us have you at the {dock}', 'go get charged', 'drive over to the {dock}', 'you look tired, go to your {dock}', 'refuel at the {dock}',
    'sit in the {dock} for a while', 'that was all for now, return to the {dock}', 'go and find your {dock}', 'rest at your {dock}', 'step into the {dock}',
    'fill your battery up', 'mission finished, dock',
)
SAY = ('say in a clear voice: {T}', 'could you say {T}', 'state the following: {T}', 'say aloud "{T}"', 'speak this text: {T}', 'let us hear you say {T}',
       'proclaim that {T}', 'make an announcement: {T}', 'tell the people here that {T}', 'say these words: {T}', 'broadcast {T}')
WRAPPERS = (
    '{base}', '{base}', '{base} in a moment', 'could you possibly {base}?', 'would it be possible to {base}?', 'I really want you to {base}', 'right, {base}',
    'dear robot, {base}', '{name}! {base}', 'what I need now is that you {base}', 'feel free to {base}', 'may I see you {base}?', 'time for you to {base}',
    'do {base}', 'be good and {base}', 'I hope you can {base}', 'remember to {base}', 'the plan is to {base}', 'as a next step {base}', 'hm, {base}', 'I beg you to {base}',
    'consider {ing}', 'begin {ing}', 'I suggest {ing}', 'would you be able to {base}?', '{base}, will you', '{base}, would you', '{base} as soon as you can',
    'once the {thing} is gone, {base}', 'the boss wants you to {base}', '{base} and report back', 'oh, and {base}', 'one more thing: {base}', '{name} asked for you to {base}',
)
SAY_TEXTS = ('the {w} will arrive at {n}', '{w} for {name}', 'please bring the {w}', 'good afternoon', 'I saw a {w} in the {place}', 'mind the {w}', '{name} and {name} won the {w}',
             'all {w} must leave the {place}', 'greetings', 'I am {n} years old', 'you look {w} today', '{w} or {w}')
