# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Messages in, answers out: the one object that ROS, HTTP and the command line share.

Checks a request, renders and encodes the prompt, keeps sessions, applies stop strings and time
limits. Knows no ROS, no HTTP, no arrays and no kernels.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gemma_thor_ros import validate
from gemma_thor_ros.audit import Generation
from gemma_thor_ros.chat_stream import ChatStream
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.engine.engine import Engine
from gemma_thor_ros.engine.stats import EngineStats
from gemma_thor_ros.guide import Guides
from gemma_thor_ros.prompt_images import ImageReader, Prompt, VisionInfo, with_soft_tokens
from gemma_thor_ros.saved_sessions import AnsweredPrompt, Restored, Saved, SavedSessions
from gemma_thor_ros.schema import (
    ChatRequest,
    ChatResult,
    ErrorCode,
    FinishReason,
    Guide,
    PromptImage,
    QueuePosition,
    Request,
    RequestError,
    SamplingParams,
)
from gemma_thor_ros.sessions import (
    Message,
    SessionStore,
    SessionView,
    first_turn_size,
    joined,
    leading_system,
)
from gemma_thor_ros.stops import StopFilter
from gemma_thor_ros.text.grammar import Grammars
from gemma_thor_ros.text.normalize_tools import tool_schemas
from gemma_thor_ros.text.parser import OutputParser
from gemma_thor_ros.text.prompt import ensure_model_turn, prompt_state, render_with_media
from gemma_thor_ros.text.raw_output import RawOutput
from gemma_thor_ros.text.segments import encode_segments, segments_text
from gemma_thor_ros.text.tokenizer import Tokenizer
from gemma_thor_ros.thought_budget import ThoughtBudget, ThoughtMarks
from gemma_thor_ros.time_limits import TimeLimits

Variant = Literal['large', 'small']
MAX_REQUEST_ID = 64


@dataclass(frozen=True)
class ModelInfo:
    """What is loaded; `facts` holds whatever else is worth showing.

    kv_identity: what K and V depend on besides the tokens.
    """

    name: str
    path: str
    family: str
    weights_format: str
    num_parameters: int
    vocab_size: int
    context_length: int
    max_context_length: int
    kv_dtype: str
    max_sequences: int
    device: str
    variant: Variant
    thinking: bool
    stop_ids: tuple[int, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    vision: VisionInfo = field(default_factory=VisionInfo)
    kv_identity: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RenderedPrompt:
    """A prompt as the model gets it."""

    text: str
    token_ids: tuple[int, ...]


class Chat:
    """Chat on one engine; safe to use from any thread."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        info: ModelInfo,
        config: EngineConfig,
        grammars: Grammars | None = None,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._info = info
        self._config = config
        self._sessions = SessionStore(config['session.ttl'], config['session.max_sessions'])
        self._saved = SavedSessions(
            engine, self._sessions, config, info.kv_identity, info.vision.refusal
        )
        self._images = ImageReader(config, info.vision)
        self._thought_marks = ThoughtMarks(tokenizer)
        self._guides = Guides(grammars or Grammars(tokenizer, info.stop_ids), config)
        self._longest_piece = max(len(piece) for piece in tokenizer.pieces if piece)
        self._timer = TimeLimits()
        self._listeners: list[Callable[[ChatRequest, ChatResult], None]] = []
        self._auditors: list[Callable[[Generation, ChatResult], None]] = []
        self._watchers: list[Callable[[ChatRequest, ChatStream], None]] = []

    def on_result(self, listener: Callable[[ChatRequest, ChatResult], None]) -> None:
        """Call back at the end of each request, from its reader's thread; must be quick."""
        self._listeners.append(listener)

    def on_generation(self, listener: Callable[[Generation, ChatResult], None]) -> None:
        """Call back as on_result does, with all that it takes to run the request again."""
        self._auditors.append(listener)

    def on_stream(self, listener: Callable[[ChatRequest, ChatStream], None]) -> None:
        """Call back with each new stream, to watch() it, from its submitter's thread."""
        self._watchers.append(listener)

    def submit(self, request: ChatRequest) -> ChatStream:
        """Check, render and queue a request; its answer arrives in the stream.

        Raises:
            RequestError: before any work of the engine; the sentence names the field and the
            limits.
        """
        config = self._config
        if request.prompt is None:
            validate.check_messages(request.messages, config, self._info.vision.refusal)
            validate.check_tools(request.tools, config)
            validate.check_choice(request)
            if request.tool_choice == 'none':
                request = replace(request, tools=())  # a model that is shown none calls none
        validate.check_stop(request.stop, config)
        if (request.thinking_budget or 0) < 0:
            raise validate.invalid(
                f'thinking_budget is {request.thinking_budget}, at least 0 tokens are needed',
                'thinking_budget',
            )
        sampling = validate.resolve_sampling(request.sampling, config)
        priority = validate.resolve_priority(request.priority, request.front_end, config)
        request_id = request.request_id or f'req-{uuid.uuid4().hex[:24]}'
        if len(request_id) > MAX_REQUEST_ID:
            raise validate.invalid(
                f'request_id has {len(request_id)} characters, at most {MAX_REQUEST_ID} are '
                'allowed',
                'request_id',
            )
        timeout_s = request.timeout_s or config['request.timeout']
        if timeout_s < 0:
            raise validate.invalid(
                f'timeout is {timeout_s:g} s, it must not be negative', 'timeout'
            )
        history = self._begin(request, request_id)
        try:
            ids, images, parser, guide = self._prepare(request, history, request_id)
            self._check_length(len(ids), 'messages' if request.prompt is None else 'prompt')
            room = self._info.context_length - len(ids)
            borders = _turn_borders(ids, self._tokenizer.controls.turn)
            if sampling.max_tokens > room:
                sampling = _limited(sampling, room)
            outbox = self._engine.submit(
                Request(
                    request_id,
                    ids,
                    sampling,
                    priority,
                    request.choice,
                    request.deadline_s,
                    request.front_end,
                    config['request.first_token_timeout'],
                    config['request.token_timeout'],
                    checkpoints=borders,
                    guide=guide,
                    images=images,
                )
            )
        except BaseException:
            self._abandon(request, request_id)
            raise
        generation = Generation(
            request,
            request_id,
            () if request.prompt is not None else tuple(joined(history, request.messages)),
            ids,
            sampling,
            priority,
            self._thinks(request),
            time.time(),
        )
        prompt = None
        if request.session_id and borders:
            prompt = AnsweredPrompt.of(ids, images, borders[-1])
        stream = ChatStream(
            outbox,
            parser,
            StopFilter(request.stop),
            self._engine.cancel,
            lambda result: self._finish(generation, result, prompt),
        )
        for watcher in self._watchers:
            watcher(request, stream)
        self._timer.add(
            time.monotonic() + timeout_s, stream, f'the time limit of {timeout_s:g} s ran out'
        )
        return stream

    def ask(self, prompt: str, timeout_s: float = 0.0) -> ChatResult:
        """Answer one user message, whole; for scripts and tests."""
        message = {'role': 'user', 'content': prompt}
        return self.submit(ChatRequest((message,), timeout_s=timeout_s)).result()

    def cancel(self, request_id: str) -> bool:
        """End a request at the next step border; False when it is not running."""
        return self._engine.cancel(request_id)

    def queue_position(self, request_id: str) -> QueuePosition | None:
        """Return where a waiting or preempted request stands; None when it runs or has ended."""
        return self._engine.queue_position(request_id)

    def render_prompt(
        self, request: ChatRequest, add_generation_prompt: bool = True
    ) -> RenderedPrompt:
        """Return the prompt that a request would give the model, without running it.

        Raises:
            RequestError: as submit does for messages and tools.
        """
        validate.check_messages(request.messages, self._config, self._info.vision.refusal)
        validate.check_tools(request.tools, self._config)
        history = self._sessions.history(request.session_id) if request.session_id else []
        messages = [*history, *request.messages]
        segments = self._prompt(messages, request, add_generation_prompt).segments
        return RenderedPrompt(
            segments_text(segments), tuple(encode_segments(segments, self._tokenizer))
        )

    def tokenize(self, text: str, add_bos: bool = False) -> list[int]:
        """Encode ordinary text; what looks like a control token stays text."""
        start = [self._tokenizer.controls.bos] if add_bos else []
        return start + self._tokenizer.encode(text)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Decode token ids, control tokens written out.

        Raises:
            RequestError: INVALID_REQUEST for an id that is not in the vocabulary.
        """
        return self._tokenizer.decode(token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to the text; empty for control tokens."""
        return self._tokenizer.token_bytes(token_id)

    def model_info(self) -> ModelInfo:
        """Return what is loaded."""
        return self._info

    def stats(self) -> EngineStats:
        """Return a snapshot of the engine's figures."""
        return self._engine.stats()

    def list_sessions(self) -> list[SessionView]:
        """Return the sessions, the latest used first."""
        return self._sessions.views()

    def reset_session(self, session_id: str, remove: bool = False) -> int:
        """Forget a session's history ('*' = all); its running request is cancelled.

        Returns how many were reset. Raises RequestError UNKNOWN_SESSION.
        """
        count = len(self._sessions.views()) if session_id == '*' else 1
        for request_id in self._sessions.reset(session_id, remove):
            self._engine.cancel(request_id)
        return count

    def hold_session(self, session_id: str, owner: str, holder: str) -> None:
        """Keep a session for the rounds of one request, which name it as their parent_id.

        Raises RequestError: BUSY while another request has the session.
        """
        self._sessions.hold(session_id, owner, holder)

    def release_session(self, session_id: str, holder: str) -> None:
        """End a hold; a session that still has no history is forgotten."""
        self._sessions.release(session_id, holder)

    def cut_session(self, session_id: str, request_id: str, num_characters: int) -> None:
        """Let the history say only the first characters of the session's last answer.

        Raises RequestError: UNKNOWN_REQUEST when a later request has begun; BUSY while it runs.
        """
        self._sessions.cut(session_id, request_id, num_characters)

    def last_turn(self, session_id: str) -> str:
        """Return the id of a session's last request. Raises RequestError UNKNOWN_SESSION."""
        return self._sessions.last_turn(session_id)

    def save_session(self, session_id: str, name: str = '', with_cache: bool = False) -> Saved:
        """Write a session to session.folder, with_cache: and its KV pages for a warm start.

        A running request of the session is not in it. Raises RequestError: UNKNOWN_SESSION,
        UNSUPPORTED without a folder, INVALID_REQUEST for a bad name, ENGINE for a disk that fails.
        """
        return self._saved.save(session_id, name, with_cache)

    def restore_session(
        self, name: str, session_id: str = '', overwrite: bool = False
    ) -> Restored:
        """Read a saved session, under its own id or another one, with the KV pages if it has any.

        Raises RequestError: UNKNOWN_SESSION when there is no such file; INVALID_REQUEST when it is
        no saved session or the id is taken; BUSY; UNSUPPORTED without a folder.
        """
        return self._saved.restore(name, session_id, overwrite)

    def close(self) -> None:
        """End the timer thread; the engine is stopped by its owner."""
        self._timer.close()

    def _begin(self, request: ChatRequest, request_id: str) -> list[Message]:
        if not request.session_id:
            return []
        return self._sessions.begin(
            request.session_id, request.front_end, request_id, request.parent_id
        )

    def _abandon(self, request: ChatRequest, request_id: str) -> None:
        if request.session_id:
            self._sessions.abandon(request.session_id, request_id)

    def _prepare(
        self, request: ChatRequest, history: list[Message], request_id: str
    ) -> tuple[
        tuple[int, ...], tuple[PromptImage, ...], OutputParser | RawOutput, Guide | None
    ]:
        """Return the prompt's ids and images, what reads the answer to it and what guides it."""
        if request.prompt is not None:
            if isinstance(request.prompt, str):
                self._check_size(len(request.prompt), 'prompt')
                ids = self.tokenize(request.prompt, add_bos=True)
            else:
                ids = list(request.prompt)
            return tuple(ids), (), RawOutput(self._tokenizer), None
        prompt = self._render(request, history, request_id)
        self._check_size(sum(len(segment.text) for segment in prompt.segments), 'messages')
        schemas = tool_schemas(list(request.tools))
        state = prompt_state(prompt.segments)
        parser = OutputParser(self._tokenizer, schemas, prompt=state)
        guide: Guide | None = self._guides.make(request, state, self._thinks(request))
        if request.thinking_budget:
            guide = ThoughtBudget(request.thinking_budget, self._thought_marks, state, guide)
        ids = encode_segments(prompt.segments, self._tokenizer)
        return tuple(ids), prompt.placed(ids, self._tokenizer.controls.image), parser, guide

    def _render(
        self, request: ChatRequest, history: list[Message], request_id: str
    ) -> Prompt:
        """Render history and messages; old turns go when its share of tokens or images is used."""
        limit = self._config['session.max_tokens'] or self._info.context_length // 2
        dropped = 0
        while True:
            messages = joined(history, request.messages)
            first = leading_system(history)
            # The oldest turn; the last one kept in the history goes as a whole too.
            size = first_turn_size(history) or len(history) - first
            if not size or self._images.fit(messages):
                prompt = self._prompt(messages, request, not request.continue_final_message)
                if not size or len(encode_segments(prompt.segments, self._tokenizer)) <= limit:
                    break
            del history[first : first + size]
            dropped += size
        if dropped:
            self._sessions.trim(request.session_id, request_id, dropped)
        return prompt

    def _prompt(
        self, messages: Sequence[Message], request: ChatRequest, add_generation_prompt: bool
    ) -> Prompt:
        thinking = self._thinks(request)
        segments, media = render_with_media(
            self._images.read(messages, len(request.messages)),
            list(request.tools),
            variant=self._info.variant,
            enable_thinking=thinking,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=request.continue_final_message,
        )
        if add_generation_prompt and not request.continue_final_message:
            segments = ensure_model_turn(
                segments, variant=self._info.variant, enable_thinking=thinking
            )
        return with_soft_tokens(segments, media)

    def _thinks(self, request: ChatRequest) -> bool:
        if request.thinking_budget == 0:
            return False
        if request.enable_thinking is None:
            return bool(self._config['model.thinking'])
        return request.enable_thinking

    def _check_size(self, num_chars: int, param: str) -> None:
        """Refuse what can't fit before it is encoded: that takes long for texts of megabytes."""
        least = num_chars // self._longest_piece
        if least >= self._info.context_length:
            raise RequestError(
                ErrorCode.CONTEXT_LENGTH,
                f'the prompt has {num_chars:,} characters and so at least {least:,} tokens, the '
                f'context is {self._info.context_length:,} tokens',
                param,
            )

    def _check_length(self, num_tokens: int, param: str) -> None:
        context = self._info.context_length
        if num_tokens >= context:
            raise RequestError(
                ErrorCode.CONTEXT_LENGTH,
                f'the prompt has {num_tokens:,} tokens, the context is {context:,} tokens and '
                'needs room for at least 1 token of answer',
                param,
            )

    def _finish(
        self, generation: Generation, result: ChatResult, prompt: AnsweredPrompt | None
    ) -> None:
        """Keep the answer in the session; an answer that failed leaves the history as it was."""
        request = generation.request
        for listener in self._listeners:
            listener(request, result)
        for auditor in self._auditors:
            auditor(generation, result)
        if not request.session_id:
            return
        if result.finish_reason is FinishReason.ERROR or not (result.text or result.tool_calls):
            self._sessions.abandon(request.session_id, result.request_id)
            return
        tokens = len(generation.prompt_ids) + result.usage.completion_tokens
        messages = [*request.messages, answer_message(result)]
        self._sessions.commit(
            request.session_id, result.request_id, messages, tokens, prompt
        )


def answer_message(result: ChatResult) -> Message:
    """Return an answer as the assistant message that a later prompt shows."""
    message: Message = {'role': 'assistant', 'content': result.text}
    if result.reasoning:
        message['reasoning'] = result.reasoning
    if result.tool_calls:
        message['tool_calls'] = [
            {
                'id': call.call_id,
                'type': 'function',
                'function': {'name': call.name, 'arguments': call.arguments},
            }
            for call in result.tool_calls
        ]
    return message


def _turn_borders(token_ids: Sequence[int], turn: int) -> tuple[int, ...]:
    """Return where later prompts are likely to part from this one.

    That is the end of the system block, the start of the last turn and that of the answer.
    """
    starts = [index for index, token_id in enumerate(token_ids) if token_id == turn]
    return tuple(sorted({*starts[1:2], *starts[-2:]}))


def _limited(sampling: SamplingParams, room: int) -> SamplingParams:
    return replace(sampling, max_tokens=room, min_tokens=min(sampling.min_tokens, room))
