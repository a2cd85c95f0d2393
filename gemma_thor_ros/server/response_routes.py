# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The routes below /v1/responses: answer, look up, forget."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from gemma_thor_ros.chat import answer_message
from gemma_thor_ros.prompt_images import count_images
from gemma_thor_ros.schema import ChatResult
from gemma_thor_ros.server import openapi
from gemma_thor_ros.server.errors import ResponseNotFound
from gemma_thor_ros.server.json_body import JsonRoute
from gemma_thor_ros.server.openai_types import JsonObject
from gemma_thor_ros.server.response_input import messages_of
from gemma_thor_ros.server.response_store import ResponseStore, Stored
from gemma_thor_ros.server.response_types import Deleted, ResponseOut, ResponseRequest
from gemma_thor_ros.server.responses import ResponseForm, empty_response, to_chat_request
from gemma_thor_ros.server.security import request_id
from gemma_thor_ros.server.service import Service
from gemma_thor_ros.server.words import invalid


def _check_images(before: Stored, new: Sequence[JsonObject], most: int) -> None:
    """Refuse images that only a chain has too many of, which no other input would mend."""
    earlier, added = count_images(before.messages), count_images(new)
    if 0 < earlier <= most < earlier + added:
        raise invalid(
            f'input has {added} images and what previous_response_id goes on with has {earlier}; '
            f'at most {most} are taken together (request.max_images). Earlier images are not '
            'dropped: go on without new ones, or begin anew with the conversation as input and '
            'fewer images',
            'previous_response_id',
        )


def response_router(service: Service) -> APIRouter:
    """Return the routes, with a store of their own."""
    router = APIRouter(prefix='/v1/responses', route_class=JsonRoute)
    store = ResponseStore(service.config['http.max_stored'])

    def stored(response_id: str) -> Stored:
        found = store.get(response_id)
        if found is None:
            raise ResponseNotFound(response_id)
        return found

    @router.post('', response_model=ResponseOut, responses=openapi.streamed())
    async def create(body: ResponseRequest, request: Request) -> Response:
        """Answer a conversation with output items, whole or as server-sent events."""
        name = service.model(body.model or '')
        before = stored(body.previous_response_id) if body.previous_response_id else None
        new = messages_of(body.input)
        messages = (*before.messages, *new) if before is not None else new
        if before is not None:
            _check_images(before, new, service.config['request.max_images'])
        asked_id = request_id(request.scope, 'req')
        asked = to_chat_request(body, messages, asked_id)
        response = empty_response(f'resp_{uuid.uuid4().hex}', name, body, service.config)
        generation = await service.generate([asked], request)

        def keep(finished: ResponseOut, result: ChatResult) -> None:
            if finished.store:
                store.put(finished, before, [*new, answer_message(result)])

        with_logprobs = 'logprobs' in asked.sampling
        form = ResponseForm(response, with_logprobs, service.chat(), keep)
        return await service.answer(request, generation, form, bool(body.stream))

    @router.get('/{response_id}', responses=openapi.problems(404))
    async def retrieve(response_id: str) -> ResponseOut:
        """Return a stored answer."""
        return stored(response_id).response

    @router.delete('/{response_id}', responses=openapi.problems(404))
    async def delete(response_id: str) -> Deleted:
        """Forget a stored answer; answers that went on from it keep what they need."""
        stored(response_id)
        store.delete(response_id)
        return Deleted(id=response_id)

    return router
