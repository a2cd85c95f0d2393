# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Messages and tools to the prompt that Gemma 4 was trained on, as segments.

Follows the released chat template (version of 2026-07-15) to the byte when `normalize` is off;
by default messages and tools are first brought into the form that the template renders well.
Control tokens come from here alone; every string of a message stays ordinary text. Knows no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from gemma_thor_ros.schema import ErrorCode, RequestError
from gemma_thor_ros.text.controls import (
    AUDIO,
    BOS,
    CALL,
    CALL_END,
    CHANNEL,
    CHANNEL_END,
    IMAGE,
    RESPONSE,
    RESPONSE_END,
    THINK,
    TURN,
    TURN_END,
    VIDEO,
)
from gemma_thor_ros.text.declarations import write_declaration
from gemma_thor_ros.text.normalize_messages import decode_arguments, normalize_messages
from gemma_thor_ros.text.normalize_tools import normalize_tools
from gemma_thor_ros.text.segments import Segment, encode_segments, segments_text
from gemma_thor_ros.text.writer import Writer

__all__ = ['PromptState', 'Segment', 'encode_segments', 'ensure_model_turn', 'prompt_state',
           'render', 'render_with_media', 'segments_text']

Variant = Literal['large', 'small']
_MEDIA = {'image': IMAGE, 'image_url': IMAGE, 'audio': AUDIO, 'input_audio': AUDIO, 'video': VIDEO}
_LABEL = 'thought\n'
_CONTINUE = {False: '', None: '', '': '', True: 'content', 'content': 'content',
             'reasoning_content': 'reasoning', 'reasoning': 'reasoning'}


class PromptState(NamedTuple):
    """Where a prompt leaves the model, for the parser of its answer.

    `channel_text` is the text after a channel opener that the prompt doesn't close (None: no open
    thought). `continues` says that the prompt ends inside visible text of the model's turn, so a
    leading blank of the answer belongs to it.
    """

    channel_text: str | None = None
    continues: bool = False


def render(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None,
           *, variant: str = 'large', enable_thinking: bool = False,
           add_generation_prompt: bool = True, continue_final_message: bool | str = False,
           preserve_thinking: bool = False, normalize: bool = True) -> list[Segment]:
    """Render a chat in OpenAI form; neighbouring text is one segment.

    `variant` 'large' (12B, 26B, 31B) gets a closed empty thought when thinking is off.
    `continue_final_message` leaves the last message open: True or 'content' after its text,
    'reasoning_content' inside its thought; no generation prompt is added then. Raises RequestError
    naming the message or tool.
    """
    return render_with_media(
        messages, tools, variant=variant, enable_thinking=enable_thinking,
        add_generation_prompt=add_generation_prompt, preserve_thinking=preserve_thinking,
        continue_final_message=continue_final_message, normalize=normalize)[0]


def render_with_media(
        messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None,
        *, variant: str = 'large', enable_thinking: bool = False,
        add_generation_prompt: bool = True, continue_final_message: bool | str = False,
        preserve_thinking: bool = False, normalize: bool = True,
        ) -> tuple[list[Segment], list[Mapping[str, Any]]]:
    """As `render`, and the image, audio and video parts in the order of their tokens."""
    if variant not in ('large', 'small'):
        raise _bad(f"variant is {variant!r}, expected 'large' or 'small'", 'variant')
    if not messages:
        raise _bad('messages is empty', 'messages')
    known = isinstance(continue_final_message, bool | str | None)
    part = _CONTINUE.get(continue_final_message) if known else None
    if part is None:
        raise _bad(f'continue_final_message is {continue_final_message!r}, expected true, false, '
                   "'content' or 'reasoning_content'", 'continue_final_message')
    if normalize:
        tools = normalize_tools(tools)
        messages = normalize_messages(messages, open_part=part)
    renderer = _Renderer(messages, enable_thinking, preserve_thinking, part)
    renderer.system(tools or ())
    renderer.turns()
    if add_generation_prompt and not part:
        renderer.generation_prompt(variant == 'large', normalize)
    return renderer.out.finish(), renderer.media


def ensure_model_turn(segments: Sequence[Segment], *, variant: str = 'large',
                      enable_thinking: bool = False) -> list[Segment]:
    """Open a model turn where the template leaves none (text, call and result as last messages).

    Returns the segments unchanged when the prompt already ends where the model can go on.
    """
    opened = list(segments)
    last = next((segment for segment in reversed(opened) if segment.control), None)
    if last is None or last.text != TURN_END:
        return opened
    opened += (Segment(TURN, True), Segment('model\n'))
    if variant == 'large' and not enable_thinking:
        opened += (Segment(CHANNEL, True), Segment(_LABEL), Segment(CHANNEL_END, True))
    return opened


def prompt_state(segments: Sequence[Segment]) -> PromptState:
    """Tell where a rendered prompt, or its tail, leaves the model."""
    last = next((index for index in range(len(segments) - 1, -1, -1) if segments[index].control),
                -1)
    text = segments_text(segments[last + 1:])
    marker = segments[last].text if last >= 0 else ''
    if marker == CHANNEL:
        return PromptState(channel_text=text)
    if marker == TURN:
        return PromptState(continues=bool(text.partition('\n')[2]))
    return PromptState(continues=bool(text) and marker not in ('', TURN_END))


class _Renderer:
    """One rendering: walks the messages once and writes segments."""

    def __init__(self, messages: Sequence[Mapping[str, Any]], enable_thinking: bool,
                 preserve_thinking: bool, open_part: str) -> None:
        self.out = Writer()
        self.media: list[Mapping[str, Any]] = []
        self.messages = messages
        self.first = 0                   # messages before it are in the system block
        self.enable_thinking = enable_thinking
        self.preserve_thinking = preserve_thinking
        self.open_part = open_part
        self.last_kind = ''              # what the last message wrote: 'call', 'response' or ''
        self.turn_open = False           # the last turn has no end marker yet
        self.roles = [_role(index, message) for index, message in enumerate(messages)]

    def system(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """The system block: thinking switch, system text, tool declarations."""
        out = self.out
        out.control(BOS)
        has_system = self.roles[0] in ('system', 'developer')
        if not (self.enable_thinking or tools or has_system):
            return
        out.control(TURN)
        out.text('system\n')
        if self.enable_thinking:
            out.control(THINK)
            out.text('\n')
        if has_system:
            self.first = 1
            content = self.messages[0].get('content')
            if isinstance(content, str):
                out.text(content.strip())
            elif isinstance(content, list | tuple):
                for part in content:
                    out.text(_part_text(0, part).strip() + ' ')
        if self.open_part and self.first == len(self.messages):
            raise _bad('continue_final_message needs an assistant message at the end',
                       'continue_final_message')
        for index, tool in enumerate(tools):
            write_declaration(out, index, tool)
        out.control(TURN_END)
        out.text('\n')

    def turns(self) -> None:
        """All messages after the system block; tool messages are written by their caller."""
        roles = self.roles
        last_user = max((i for i, role in enumerate(roles) if role == 'user' and i >= self.first),
                        default=-1)
        speakers = [i for i in range(self.first, len(roles)) if roles[i] != 'tool']
        for position, index in enumerate(speakers):
            before = roles[speakers[position - 1]] if position else ''
            after = roles[speakers[position + 1]] if position + 1 < len(speakers) else ''
            self._message(index, before, after, index > last_user)

    def _message(self, index: int, before: str, after: str, after_last_user: bool) -> None:
        out = self.out
        message = self.messages[index]
        speaker = 'model' if self.roles[index] == 'assistant' else self.roles[index]
        open_part = self.open_part if index == len(self.messages) - 1 else ''
        if not (speaker == 'model' and before == 'assistant'):
            out.control(TURN)
            out.text(speaker + '\n')
        calls = message.get('tool_calls') or ()
        thought = message.get('reasoning') or message.get('reasoning_content')
        if thought and (after_last_user or (self.preserve_thinking and calls)):
            if not isinstance(thought, str):
                raise _bad(f'messages[{index}].reasoning_content must be a string, found '
                           f'{type(thought).__name__}', f'messages[{index}].reasoning_content')
            out.control(CHANNEL)
            out.text(_LABEL + thought)
            if open_part == 'reasoning':
                return
            out.text('\n')
            out.control(CHANNEL_END)
        if open_part == 'reasoning':
            raise _bad(f'messages[{index}] has no reasoning_content to continue',
                       'continue_final_message')
        for number, call in enumerate(calls):
            self._call(index, number, call)
        answered = self._responses(index, message, calls)
        visible = self._content(index, speaker, message.get('content'), open_part)
        self.last_kind = 'response' if answered else 'call' if calls else ''
        self.turn_open = True
        if open_part:
            return
        if calls and not answered:
            out.control(RESPONSE)
        elif speaker == 'model' and after == 'assistant':
            pass
        elif not answered or visible or after:
            out.control(TURN_END)
            out.text('\n')
            self.turn_open = False

    def _call(self, index: int, number: int, call: Any) -> None:
        where = f'messages[{index}].tool_calls[{number}]'
        function = call.get('function') if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get('name'), str):
            raise _bad(f'{where} has no function with a name', where)
        out = self.out
        out.control(CALL)
        out.text(f'call:{function["name"]}{{')
        out.pairs(decode_arguments(function.get('arguments'), where), False, where)
        out.text('}')
        out.control(CALL_END)

    def _responses(self, index: int, message: Mapping[str, Any], calls: Sequence[Any]) -> bool:
        """Write the tool results that belong to a message; True when there was one."""
        where = f'messages[{index}].tool_responses'
        embedded = message.get('tool_responses')
        if embedded:
            for item in embedded:
                if not isinstance(item, Mapping):
                    raise _bad(f'{where} must hold objects with name and response', where)
                self._response(str(item.get('name') or 'unknown'), item.get('response'), where)
            return True
        if not calls:
            return False
        names = {call.get('id'): call['function']['name'] for call in calls
                 if isinstance(call.get('id'), str | None)}
        following = index + 1
        while following < len(self.roles) and self.roles[following] == 'tool':
            reply = self.messages[following]
            name = reply.get('name')
            name = name if isinstance(name, str) and name else 'unknown'
            reply_id = reply.get('tool_call_id')
            if isinstance(reply_id, str | None):
                name = names.get(reply_id, name)
            self._reply(following, name, reply.get('content'))
            following += 1
        return following > index + 1

    def _reply(self, index: int, name: str, content: Any) -> None:
        where = f'messages[{index}].content'
        if not (isinstance(content, list | tuple) and all(map(_is_part, content))):
            self._response(name, content, where)
            return
        text = ''.join([_part_text(index, part) for part in content if part['type'] == 'text'])
        self._response(name, text, where)
        for part in content:
            if part['type'] in _MEDIA:
                self.out.control(_MEDIA[part['type']])
                self.media.append(part)

    def _response(self, name: str, body: Any, where: str) -> None:
        out = self.out
        out.control(RESPONSE)
        out.text(f'response:{name}{{')
        if isinstance(body, Mapping):
            out.pairs(body, False, where)
        else:
            out.text('value:')
            out.value(body, False, where)
        out.text('}')
        out.control(RESPONSE_END)

    def _content(self, index: int, speaker: str, content: Any, open_part: str) -> bool:
        """Write the visible content; True when there is any."""
        trim = _strip_thinking if speaker == 'model' else str.strip
        if isinstance(content, str):
            text = trim(content)
            self.out.text(text)
            return bool(text)
        if not isinstance(content, list | tuple):
            if open_part:
                raise _bad(f'messages[{index}] has no text to continue', 'continue_final_message')
            return False
        texts = [number for number, part in enumerate(content)
                 if isinstance(part, Mapping) and part.get('type') == 'text']
        if open_part and not texts:
            raise _bad(f'messages[{index}] has no text to continue', 'continue_final_message')
        visible = False
        for part in content[:texts[-1] + 1] if open_part else content:
            kind = part.get('type') if isinstance(part, Mapping) else None
            if kind == 'text':
                text = trim(_part_text(index, part))
                self.out.text(text)
                visible = visible or bool(text)
            elif kind in _MEDIA:
                self.out.control(_MEDIA[kind])
                self.media.append(part)
                visible = True
        return visible

    def generation_prompt(self, large: bool, normalize: bool) -> None:
        """Open the model's turn, unless the last message left it open."""
        out = self.out
        if not self.last_kind:
            out.control(TURN)
            out.text('model\n')
            if large and not self.enable_thinking:
                out.control(CHANNEL)
                out.text(_LABEL)
                out.control(CHANNEL_END)
        elif self.last_kind == 'response' and self.enable_thinking \
                and (self.turn_open or not normalize):
            # The template opens a thought even after a turn that it has just closed.
            out.control(CHANNEL)
            out.text(_LABEL)


def _bad(sentence: str, param: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, sentence, param)


def _role(index: int, message: Any) -> str:
    role = message.get('role') if isinstance(message, Mapping) else None
    if not isinstance(role, str) or not role:
        raise _bad(f'messages[{index}] has no role', f'messages[{index}].role')
    return role


def _is_part(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get('type'), str)


def _part_text(index: int, part: Any) -> str:
    text = part.get('text', '') if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        raise _bad(f'messages[{index}].content has a part whose text is not a string',
                   f'messages[{index}].content')
    return text


def _strip_thinking(text: str) -> str:
    """Drop thoughts written into the text of an earlier answer, then blanks at both ends."""
    if CHANNEL in text or CHANNEL_END in text:
        text = ''.join([piece.partition(CHANNEL)[0] for piece in text.split(CHANNEL_END)])
    return text.strip()
