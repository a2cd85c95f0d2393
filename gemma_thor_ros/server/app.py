# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The FastAPI application: which routes there are and what they answer. Knows no ROS."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from gemma_thor_ros import __version__
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime, State
from gemma_thor_ros.server import chat_completions, completions, errors, openapi
from gemma_thor_ros.server.errors import ModelNotFound, without_folders
from gemma_thor_ros.server.json_body import JsonRoute
from gemma_thor_ros.server.metrics import Metrics
from gemma_thor_ros.server.openai_types import (
    ChatCompletion,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
    Health,
    ModelCard,
    ModelList,
)
from gemma_thor_ros.server.page import page_router
from gemma_thor_ros.server.response_routes import response_router
from gemma_thor_ros.server.security import Gate, request_id
from gemma_thor_ros.server.service import Service
from gemma_thor_ros.server.token_routes import token_router


def create_app(runtime: Runtime, config: EngineConfig, api_key: str = '') -> ASGIApp:
    """Return the application on a runtime, which may still be loading."""
    app = FastAPI(
        title='gemma_thor_ros',
        version=__version__,
        description="Gemma 4 on the robot, in OpenAI's words.",
        docs_url=None,  # FastAPI's page loads its parts from elsewhere
        redoc_url=None,
    )
    errors.install(app)
    metrics = Metrics(runtime)
    service = Service(runtime, config, metrics.on_step)
    app.include_router(_status_router(service, metrics))
    app.include_router(_generation_router(service))
    app.include_router(response_router(service))
    app.include_router(token_router(service, openapi.problems(400, 404)))
    app.include_router(page_router())
    openapi.install(app, with_key=bool(api_key))
    if config['http.allowed_origins']:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config['http.allowed_origins'],
            allow_methods=['GET', 'POST'],
            allow_headers=['*'],
        )
    return Gate(app, config, api_key, metrics.count_response)


def _status_router(service: Service, metrics: Metrics) -> APIRouter:
    router = APIRouter()
    runtime = service.runtime

    @router.head('/health', include_in_schema=False)
    @router.get('/health', response_model=Health, responses={503: {'model': Health}})
    async def health() -> Response:
        """Tell whether requests are served; 503 with the reason while they are not."""
        state = runtime.state
        body = Health(
            status='ok' if state is State.READY else state.value,
            progress=runtime.progress,
            stage=runtime.stage,
            error=without_folders(runtime.error) or None,
        )
        return JSONResponse(body.model_dump(), 200 if state is State.READY else 503)

    @router.get(
        '/metrics',
        response_class=Response,
        responses={200: {'content': {'text/plain': {'schema': {'type': 'string'}}}}},
    )
    async def figures() -> Response:
        """Return the figures of engine and endpoint in Prometheus' text form."""
        return Response(metrics.page(), headers={'Content-Type': CONTENT_TYPE_LATEST})

    def card() -> ModelCard:
        info = service.chat().model_info()
        return ModelCard(
            id=info.name,
            created=service.started,
            max_model_len=info.context_length,
            images=info.vision.refusal is None,
        )

    @router.get('/v1/models', responses=openapi.problems())
    async def models() -> ModelList:
        """List the model that is loaded."""
        return ModelList(data=[card()])

    @router.get('/v1/models/{model:path}', responses=openapi.problems(404))
    async def model(model: str) -> ModelCard:
        """Return the model that is loaded, if it has this name."""
        found = card()
        if model != found.id:
            raise ModelNotFound(model, found.id)
        return found

    return router


def _generation_router(service: Service) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)
    max_choices = service.config['request.max_choices']

    @router.post(
        '/v1/chat/completions', response_model=ChatCompletion, responses=openapi.streamed()
    )
    async def chat_completions_route(body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a conversation, whole or as server-sent events."""
        name = service.model(body.model or '')
        asked_id = request_id(request.scope, 'chatcmpl')
        asked = chat_completions.to_chat_requests(body, asked_id, max_choices)
        generation = await service.generate(asked, request)
        form = chat_completions.ChatForm(asked_id, name, body, service.chat())
        return await service.answer(request, generation, form, bool(body.stream))

    @router.post('/v1/completions', response_model=Completion, responses=openapi.streamed())
    async def completions_route(body: CompletionRequest, request: Request) -> Response:
        """Continue a raw prompt, whole or as server-sent events."""
        name = service.model(body.model or '')
        asked_id = request_id(request.scope, 'cmpl')
        asked = completions.to_chat_requests(body, asked_id, max_choices)
        generation = await service.generate(asked, request)
        form = completions.CompletionForm(asked_id, name, body, service.chat())
        return await service.answer(request, generation, form, bool(body.stream))

    return router

