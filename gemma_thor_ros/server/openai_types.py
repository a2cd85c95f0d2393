# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What comes in and goes out as JSON, as pydantic models in OpenAI's words.

Only shapes are checked here; ranges and meanings are checked by validate.py, for all front ends
alike.
Fields that clients send and that have no effect on us (user, store, metadata, ...) are accepted
and ignored; fields that would change the answer and that we can't serve are refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError('number_type', 'Input should be a number, not true or false')
    return value


JsonObject = dict[str, Any]
# Numbers that a client sends; pydantic by itself takes true for 1.
Whole = Annotated[int, BeforeValidator(_no_boolean)]
Number = Annotated[float, BeforeValidator(_no_boolean)]
PriorityName = Literal['background', 'agent', 'dialogue', 'operator']


class StreamOptions(BaseModel):
    """Options of a streamed answer."""

    include_usage: bool | None = None


class ChatTemplateKwargs(BaseModel):
    """Options of the prompt, in the words of other servers."""

    model_config = ConfigDict(extra='ignore')
    enable_thinking: bool | None = None


class OtherGuides(BaseModel):
    """Words of other servers that would bind the answer: refused by name, never ignored."""

    guided_json: Any = Field(default=None, description='not served: response_format is')
    guided_regex: Any = Field(default=None, description='not served')
    guided_choice: Any = Field(default=None, description='not served')
    guided_grammar: Any = Field(default=None, description='not served')
    structured_outputs: Any = Field(default=None, description='not served')
    grammar: Any = Field(default=None, description='not served')


class SamplingFields(OtherGuides):
    """How tokens are chosen: what every request that generates may say."""

    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Whole | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    seed: Whole | None = None


class ChatCompletionRequest(SamplingFields):
    """Body of POST /v1/chat/completions."""

    model_config = ConfigDict(extra='ignore', strict=False)

    messages: list[JsonObject] = Field(
        description='OpenAI messages; content is text, or parts of text and image_url'
    )
    model: str | None = Field(default=None, description='checked when given')
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = Field(
        default=None, description='auto, none, required, a function, or allowed_tools'
    )
    parallel_tool_calls: bool | None = None
    response_format: JsonObject | None = Field(
        default=None, description='of type text, json_object or json_schema'
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Whole | None = None
    max_completion_tokens: Whole | None = None
    min_tokens: Whole | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Whole] | None = None
    logit_bias: dict[str, Number] | None = None
    logprobs: bool | None = None
    top_logprobs: Whole | None = None
    n: Whole | None = Field(default=None, description='answers, which differ by their index')
    functions: list[JsonObject] | None = Field(default=None, description='not served: tools are')
    function_call: str | JsonObject | None = Field(default=None, description='not served')
    modalities: list[str] | None = Field(default=None, description='text alone is served')
    audio: JsonObject | None = Field(default=None, description='not served')
    web_search_options: JsonObject | None = Field(default=None, description='not served')
    ignore_eos: bool | None = None
    continue_final_message: bool | None = Field(
        default=None, description='go on with the last message, which is an assistant one'
    )
    reasoning_effort: str | None = Field(default=None, description='none = thinking off')
    enable_thinking: bool | None = None
    thinking_budget: Whole | None = Field(
        default=None, description='tokens of thought at most; 0 = thinking off'
    )
    chat_template_kwargs: ChatTemplateKwargs | None = None
    priority: PriorityName | None = None
    deadline_ms: Number | None = Field(default=None, description='whole answer wanted within')


class FunctionOut(BaseModel):
    """Name and arguments of a call."""

    name: str
    arguments: str = Field(description='a JSON object as text')


class ToolCallOut(BaseModel):
    """One tool call of an answer. `repaired` is ours: the parser had to mend the model's text."""

    id: str
    type: Literal['function'] = 'function'
    function: FunctionOut
    repaired: bool = False


class MessageOut(BaseModel):
    """The answer. reasoning_content and tool_calls are absent where there are none, as programs
    that loop over them expect.
    """

    role: Literal['assistant'] = 'assistant'
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallOut] | None = None


class Choice(BaseModel):
    """One answer and how it ended."""

    index: int = 0
    message: MessageOut
    logprobs: JsonObject | None = None
    finish_reason: str


class PromptTokensDetails(BaseModel):
    """Parts of the prompt's tokens."""

    cached_tokens: int = 0


class CompletionTokensDetails(BaseModel):
    """Parts of the answer's tokens."""

    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    draft_rounds: int = 0
    accepted_by_position: list[int] = []


class UsageOut(BaseModel):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()


class TimingsOut(BaseModel):
    """Ours: where the time went, in milliseconds; tokens_per_s is the rate after the first."""

    queued_ms: float
    prefill_ms: float
    time_to_first_token_ms: float
    decode_ms: float
    total_ms: float
    tokens_per_s: float


class ChatCompletion(BaseModel):
    """Answer of POST /v1/chat/completions without stream."""

    id: str
    object: Literal['chat.completion'] = 'chat.completion'
    created: int
    model: str
    choices: list[Choice]
    usage: UsageOut
    timings: TimingsOut


class CompletionRequest(SamplingFields):
    """Body of POST /v1/completions: a prompt without a template."""

    model_config = ConfigDict(extra='ignore')

    prompt: str | list[Whole] | list[str] | list[list[Whole]] = Field(
        description='text, which is encoded after a bos token, or token ids, taken as they are'
    )
    model: str | None = Field(default=None, description='checked when given')
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Whole | None = Field(default=16, description='null = the default of the server')
    min_tokens: Whole | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Whole] | None = None
    logit_bias: dict[str, Number] | None = None
    logprobs: Whole | None = Field(default=None, description='alternatives a token, 0 to 20')
    echo: bool | None = Field(default=None, description='begin the text with the prompt')
    n: Whole | None = None
    best_of: Whole | None = Field(default=None, description='must be equal to n')
    suffix: str | None = Field(default=None, description='not served')
    ignore_eos: bool | None = None
    priority: PriorityName | None = None
    deadline_ms: Number | None = Field(default=None, description='whole answer wanted within')


class CompletionLogprobs(BaseModel):
    """Log probabilities in the form of the completions API, one entry a token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int] = Field(description='where the token begins, in characters of text')


class CompletionChoice(BaseModel):
    """One text and how it ended."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None


class Completion(BaseModel):
    """Answer of POST /v1/completions without stream."""

    id: str
    object: Literal['text_completion'] = 'text_completion'
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageOut
    timings: TimingsOut


class ModelCard(BaseModel):
    """One entry of GET /v1/models."""

    id: str
    object: Literal['model'] = 'model'
    created: int
    owned_by: str = 'gemma_thor_ros'
    max_model_len: int | None = None
    images: bool = False  # whether messages may have images


class ModelList(BaseModel):
    """Answer of GET /v1/models."""

    object: Literal['list'] = 'list'
    data: list[ModelCard]


class ErrorBody(BaseModel):
    """What went wrong, in OpenAI's form."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorOut(BaseModel):
    """Body of every answer that is no success."""

    error: ErrorBody


class Health(BaseModel):
    """Answer of GET /health."""

    status: str = Field(description='ok, loading, failed, unloaded or stopped')
    progress: float = Field(default=1.0, description='of the load, 0 to 1')
    stage: str = ''
    error: str | None = None
