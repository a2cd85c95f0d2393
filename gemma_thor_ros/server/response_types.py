# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What /v1/responses takes and gives, as pydantic models in OpenAI's words."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gemma_thor_ros.server.openai_types import (
    ChatTemplateKwargs,
    JsonObject,
    Number,
    PriorityName,
    SamplingFields,
    TimingsOut,
    Whole,
)

ItemStatus = Literal['in_progress', 'completed', 'incomplete']


class ReasoningOptions(BaseModel):
    """Whether to think; a summary is never made, the thought itself is given."""

    effort: str | None = Field(default=None, description='none = thinking off')
    summary: str | None = None


class TextOptions(BaseModel):
    """Form of the text."""

    format: JsonObject | None = Field(
        default=None, description='of type text, json_object or json_schema'
    )
    verbosity: str | None = None


class ResponseRequest(SamplingFields):
    """Body of POST /v1/responses."""

    model_config = ConfigDict(extra='ignore')

    input: str | list[JsonObject] = Field(
        description='a user message, or items: messages, function_call, function_call_output, '
        'reasoning'
    )
    model: str | None = Field(default=None, description='checked when given')
    instructions: str | None = Field(default=None, description='a system message in front')
    previous_response_id: str | None = Field(
        default=None, description='go on with an answer that is still stored'
    )
    store: bool | None = Field(default=None, description='keep the answer; true unless given')
    tools: list[JsonObject] | None = Field(default=None, description='function tools, flat form')
    tool_choice: str | JsonObject | None = Field(
        default=None, description='auto, none, required, a function, or allowed_tools'
    )
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[str] | None = Field(
        default=None, description='message.output_text.logprobs is known, others are ignored'
    )
    top_logprobs: Whole | None = None
    stream: bool | None = None
    background: bool | None = Field(default=None, description='not served')
    conversation: str | JsonObject | None = Field(default=None, description='not served')
    prompt: JsonObject | None = Field(default=None, description='not served')
    truncation: str | None = Field(
        default=None, description='a prompt that does not fit is refused either way'
    )
    metadata: JsonObject | None = None
    max_output_tokens: Whole | None = None
    stop: str | list[str] | None = None
    enable_thinking: bool | None = None
    thinking_budget: Whole | None = Field(
        default=None, description='tokens of thought at most; 0 = thinking off'
    )
    chat_template_kwargs: ChatTemplateKwargs | None = None
    priority: PriorityName | None = None
    deadline_ms: Number | None = Field(default=None, description='whole answer wanted within')


class OutputText(BaseModel):
    """The text of a message."""

    type: Literal['output_text'] = 'output_text'
    text: str = ''
    annotations: list[JsonObject] = []
    logprobs: list[JsonObject] = []


class ReasoningText(BaseModel):
    """The text of a thought."""

    type: Literal['reasoning_text'] = 'reasoning_text'
    text: str = ''


class MessageItem(BaseModel):
    """Text for the user."""

    type: Literal['message'] = 'message'
    id: str
    status: ItemStatus = 'in_progress'
    role: Literal['assistant'] = 'assistant'
    content: list[OutputText] = []


class ReasoningItem(BaseModel):
    """A thought."""

    type: Literal['reasoning'] = 'reasoning'
    id: str
    status: ItemStatus = 'in_progress'
    summary: list[JsonObject] = []
    content: list[ReasoningText] = []


class FunctionCallItem(BaseModel):
    """A tool call. `repaired` is ours: the parser had to mend the model's text; null while the
    answer goes on.
    """

    type: Literal['function_call'] = 'function_call'
    id: str
    call_id: str
    name: str
    arguments: str = ''
    status: ItemStatus = 'in_progress'
    repaired: bool | None = None


Item = MessageItem | ReasoningItem | FunctionCallItem


class InputDetails(BaseModel):
    """Parts of the prompt's tokens."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(BaseModel):
    """Parts of the answer's tokens."""

    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class ResponseUsage(BaseModel):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFailure(BaseModel):
    """Why a response failed."""

    code: str
    message: str


class Incomplete(BaseModel):
    """Why a response is not complete."""

    reason: str | None = None


class ResponseOut(BaseModel):
    """Answer of POST /v1/responses without stream, and of GET /v1/responses/{id}."""

    id: str
    object: Literal['response'] = 'response'
    created_at: int
    completed_at: int | None = None
    status: Literal['in_progress', 'completed', 'incomplete', 'failed']
    error: ResponseFailure | None = None
    incomplete_details: Incomplete | None = None
    background: bool = False
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: list[Item] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: ReasoningOptions
    service_tier: str = 'default'
    store: bool
    temperature: float
    text: JsonObject = {'format': {'type': 'text'}}
    tool_choice: Any = 'auto'
    tools: list[JsonObject] = []
    top_logprobs: int = 0
    top_p: float
    truncation: str = 'disabled'
    usage: ResponseUsage | None = None
    user: str | None = None
    metadata: JsonObject = {}
    timings: TimingsOut | None = None


class Deleted(BaseModel):
    """Answer of DELETE /v1/responses/{id}."""

    id: str
    object: Literal['response'] = 'response'
    deleted: Literal[True] = True
