# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""POST /tokenize, /detokenize and /render-prompt: text, token ids and prompts without a model run.

Field names as other servers have them: `prompt` and `content` mean the same text.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from gemma_thor_ros.schema import ChatRequest
from gemma_thor_ros.server.json_body import JsonRoute
from gemma_thor_ros.server.openai_types import ChatTemplateKwargs, JsonObject, Whole
from gemma_thor_ros.server.service import Service
from gemma_thor_ros.server.words import invalid


class TokenizeRequest(BaseModel):
    """Body of POST /tokenize: a text, or messages that make a prompt."""

    model_config = ConfigDict(extra='ignore')

    model: str | None = Field(default=None, description='checked when given')
    prompt: str | None = Field(default=None, description='text; a bos token goes in front')
    content: str | None = Field(default=None, description='text; nothing goes in front')
    add_special_tokens: bool | None = Field(default=None, description='a bos token or none')
    messages: list[JsonObject] | None = Field(default=None, description='in place of a text')
    tools: list[JsonObject] | None = None
    enable_thinking: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: ChatTemplateKwargs | None = None


class TokenizeAnswer(BaseModel):
    """Answer of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeRequest(BaseModel):
    """Body of POST /detokenize."""

    model_config = ConfigDict(extra='ignore')

    model: str | None = Field(default=None, description='checked when given')
    tokens: list[Whole]


class DetokenizeAnswer(BaseModel):
    """Answer of POST /detokenize: the text, under both of its usual names."""

    prompt: str
    content: str


class RenderRequest(BaseModel):
    """Body of POST /render-prompt."""

    model_config = ConfigDict(extra='ignore')

    model: str | None = Field(default=None, description='checked when given')
    messages: list[JsonObject]
    tools: list[JsonObject] | None = None
    enable_thinking: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: ChatTemplateKwargs | None = None


class RenderAnswer(BaseModel):
    """Answer of POST /render-prompt: the prompt exactly as the model gets it."""

    text: str
    token_ids: list[int]


def token_router(service: Service, problems: dict[int | str, dict[str, Any]]) -> APIRouter:
    """Return the routes."""
    router = APIRouter(route_class=JsonRoute, responses=problems)

    @router.post('/tokenize')
    async def tokenize(body: TokenizeRequest) -> TokenizeAnswer:
        """Encode a text, or the prompt of a conversation. Control tokens in a text stay text."""
        service.model(body.model or '')
        chat = service.chat()
        given = [
            name for name in ('prompt', 'content', 'messages') if getattr(body, name) is not None
        ]
        if len(given) != 1:
            raise invalid(
                f'one of prompt, content and messages is needed, {len(given)} are given', 'prompt'
            )
        if body.messages is not None:
            prompt = await asyncio.to_thread(
                chat.render_prompt, _request(body), body.add_generation_prompt
            )
            tokens = list(prompt.token_ids)
        else:
            text = body.prompt if body.prompt is not None else body.content or ''
            add_bos = body.add_special_tokens
            if add_bos is None:
                add_bos = body.prompt is not None
            tokens = await asyncio.to_thread(chat.tokenize, text, add_bos)
        return TokenizeAnswer(
            count=len(tokens), max_model_len=chat.model_info().context_length, tokens=tokens
        )

    @router.post('/detokenize')
    async def detokenize(body: DetokenizeRequest) -> DetokenizeAnswer:
        """Decode token ids; control tokens are written out."""
        service.model(body.model or '')
        text = await asyncio.to_thread(service.chat().detokenize, body.tokens)
        return DetokenizeAnswer(prompt=text, content=text)

    @router.post('/render-prompt')
    async def render_prompt(body: RenderRequest) -> RenderAnswer:
        """Return the prompt that a conversation gives, without running it."""
        service.model(body.model or '')
        prompt = await asyncio.to_thread(
            service.chat().render_prompt, _request(body), body.add_generation_prompt
        )
        return RenderAnswer(text=prompt.text, token_ids=list(prompt.token_ids))

    return router


def _request(body: TokenizeRequest | RenderRequest) -> ChatRequest:
    thinking = body.enable_thinking
    if (
        body.chat_template_kwargs is not None
        and body.chat_template_kwargs.enable_thinking is not None
    ):
        thinking = body.chat_template_kwargs.enable_thinking
    return ChatRequest(
        messages=tuple(body.messages or ()),
        tools=tuple(body.tools or ()),
        enable_thinking=thinking,
        front_end='http',
        continue_final_message=body.continue_final_message,
    )
