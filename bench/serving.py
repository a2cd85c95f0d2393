# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""One engine behind its front ends in one process: HTTP and ROS against the engine alone.

    python bench/serving.py --out FOLDER [--commit HASH] [--seconds 300] [--parts http,streams]
                            [--model demo --device cpu]

On CUDA the weights are random ones of the preset's shapes, as in gemma-thor bench; their
vocabulary is that of the demo model, whose control and stop ids are never chosen, followed by a
made-up word for each further id. Clients are processes of their own. Parts, in this order:

http       one SSE stream and the engine alone, by turns, on the same prompt
streams    several SSE streams, and as many sequences on the engine alone; the cost of the endpoint
ttft       first token of a long prompt, cold and with all but its last turn cached
saved      the KV pages of such a prompt to a file and back (engine alone)
priority   first token of an operator's request while background requests decode (engine alone)
ros        one SSE stream that is shown on ~/tokens too, then one beside a chat goal (needs ROS)
sequences, kv   those of gemma-thor bench (CUDA)

Writes FOLDER/receipt-serving.json, anew with every record. Fails where a stream's text is not that
of the engine's tokens.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT), str(ROOT / 'bench')]     # last: an installed package has interfaces

import numpy as np  # noqa: E402
from serving_client import Client, Streamed  # noqa: E402
from serving_priority import priority  # noqa: E402
from serving_saved import saved  # noqa: E402

from gemma_thor_ros.chat import Chat, ModelInfo  # noqa: E402
from gemma_thor_ros.cli import bench, bench_device  # noqa: E402
from gemma_thor_ros.cli.bench_device import Answer, ask_prompts  # noqa: E402
from gemma_thor_ros.cli.bench_model import random_model  # noqa: E402
from gemma_thor_ros.cli.bench_records import Records, driver_version  # noqa: E402
from gemma_thor_ros.config import EngineConfig  # noqa: E402
from gemma_thor_ros.engine.engine import Engine  # noqa: E402
from gemma_thor_ros.engine.page_pool import plan_pages, window_pages  # noqa: E402
from gemma_thor_ros.load import DEMO_FOLDER, Runtime  # noqa: E402
from gemma_thor_ros.load_device import compile_ahead, warm_keys  # noqa: E402
from gemma_thor_ros.models.config import ModelConfig  # noqa: E402
from gemma_thor_ros.models.cuda_inputs import Key, prompt_bucket  # noqa: E402
from gemma_thor_ros.models.gemma4 import Gemma4  # noqa: E402
from gemma_thor_ros.ops import device  # noqa: E402
from gemma_thor_ros.ops.step_times import node_times, times_us  # noqa: E402
from gemma_thor_ros.schema import ChatRequest  # noqa: E402
from gemma_thor_ros.server.run import Sidecar  # noqa: E402
from gemma_thor_ros.text.tokenizer import Tokenizer  # noqa: E402
from gemma_thor_ros.weights.checkpoint import open_checkpoint  # noqa: E402
from gemma_thor_ros.weights.presets import PRESETS, preset_config  # noqa: E402

PARTS = ('http', 'streams', 'ttft', 'saved', 'priority', 'ros', 'sequences', 'kv')
MAX_SEQUENCES = 16
CHECKPOINTS = 8                          # windows of prefixes that the engine may keep
WORDS = ('robot', 'dock', 'wall', 'battery', 'camera', 'door', 'wheel', 'lidar', 'floor', 'hall')
STOP_IDS = (1, 50, 106)


@dataclass
class Bed:
    """What the parts share."""

    model: Any
    engine: Engine
    chat: Chat
    config: EngineConfig
    records: Records
    context: dict[str, Any]
    options: argparse.Namespace
    faults: list[str] = field(default_factory=list)

    def add(self, metric: str, values: Sequence[float], unit: str, **context: Any) -> float:
        """Record and print."""
        value = self.records.add(metric, values, unit, **self.context, **context)
        words = ' '.join(f'{name}={each}' for name, each in context.items())
        print(f'{metric:22}{value:10.3f} {unit:8} {words}', flush=True)
        return value

    def body(self, content: str, max_tokens: int) -> dict[str, Any]:
        """A chat completion of so many greedy tokens."""
        return {'messages': [{'role': 'user', 'content': content}], 'max_tokens': max_tokens,
                'temperature': 0.0, 'ignore_eos': True}

    def ids(self, body: dict[str, Any]) -> tuple[int, ...]:
        """The prompt of a body as the engine gets it."""
        return self.chat.render_prompt(ChatRequest(tuple(body['messages']))).token_ids

    def alone(self, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
        """The same requests from Engine.submit to the outbox."""
        return ask_prompts(self.engine, [self.ids(body) for body in bodies],
                           bodies[0]['max_tokens'])

    def compare(self, streamed: Streamed, answer: Answer) -> None:
        """Note a fault where a stream's text is not that of the engine's tokens."""
        # an answer's text has no blanks around it
        expected = self.chat.detokenize(answer.token_ids).strip()
        if streamed.text != expected:
            self.faults.append(f'a stream differs from the engine alone: {streamed.text[-40:]!r} '
                               f'and {expected[-40:]!r} at the end')


def http(bed: Bed, port: int) -> None:
    """One stream against the engine alone."""
    body = bed.body('Tell me about this building.', bed.options.tokens)
    engine, streams = [], []
    with Client(port) as client:
        client.ask([bed.body('Hello.', 8)])              # what only the first request does
        for _ in range(bed.options.rounds):
            answer, = bed.alone([body])
            stream, = client.ask([body])
            bed.compare(stream, answer)
            engine.append(answer)
            streams.append(stream)
    record_share(bed, engine, [stream.rate for stream in streams], sequences=1)
    record_gaps(bed, streams, sequences=1)
    bed.add('tokens_equal', [float(not bed.faults)], '1 = equal', path='http',
            compared_with='engine')


def record_share(bed: Bed, engine: Sequence[Answer], rates: Sequence[float],
                 **context: Any) -> None:
    """The rates of rounds that took turns, and the share of one in the other, round by round."""
    context['tokens'] = bed.options.tokens
    bed.add('decode_tok_s', [answer.rate for answer in engine], 'tok/s', path='engine', **context,
            token_hash=engine[0].digest)
    bed.add('decode_tok_s', rates, 'tok/s', path='http', **context)
    bed.add('stream_share', [rate / answer.rate for rate, answer in
                             zip(rates, engine, strict=True)], 'of 1', path='http', **context)


def record_gaps(bed: Bed, streams: Sequence[Streamed], **context: Any) -> None:
    """Times between tokens and to the first one, as a client sees them."""
    # an event's gap is shared among its tokens
    gaps = np.concatenate([np.diff(each.times) / each.tokens_per_event for each in streams])
    for percent in (50, 99):
        bed.add(f'between_p{percent}_ms', [float(np.percentile(gaps, percent)) * 1e3], 'ms',
                path='http', **context)
    bed.add('ttft_ms', [each.ttft_s * 1e3 for each in streams], 'ms', path='http', **context)


def streams(bed: Bed, port: int, cpu_seconds: Callable[[], float]) -> None:
    """Several streams at once; cpu_seconds: of the endpoint's thread so far."""
    tokens = max(2, bed.options.tokens // 4)
    with Client(port) as client:
        for count in bed.options.streams:
            bodies = [bed.body(f'Client {number} asks.', tokens) for number in range(count)]
            client.ask(bodies)                           # their prompts are cached from now on
            bed.alone(bodies)
            rates, together, costs = [], [], []
            every: list[Streamed] = []
            for _ in range(bed.options.rounds):
                answers = bed.alone(bodies)
                together.append(total_rate([(answer.times, 1.0) for answer in answers]))
                before = cpu_seconds()
                found = client.ask(bodies)
                costs.append((cpu_seconds() - before) / (count * tokens) * 1e6)
                rates.append(total_rate([(each.times, each.tokens_per_event) for each in found]))
                every += found
                for stream, answer in zip(found, answers, strict=True):
                    bed.compare(stream, answer)
            context = {'sequences': count, 'tokens': tokens}
            bed.add('batched_tok_s', together, 'tok/s', path='engine', **context)
            bed.add('batched_tok_s', rates, 'tok/s', path='http', **context)
            bed.add('http_us_per_token', costs, 'us', path='http', **context,
                    clock="of the endpoint's thread")
            record_gaps(bed, every, **context)


def total_rate(answers: Sequence[tuple[Sequence[float], float]]) -> float:
    """Tokens a second of all answers, while all of them run: their events and tokens in each."""
    begin = max(times[0] for times, _ in answers)
    end = min(times[-1] for times, _ in answers)
    return sum(tokens * sum(begin < at <= end for at in times)
               for times, tokens in answers) / (end - begin)


def ttft(bed: Bed, port: int) -> None:
    """A conversation whose prompt has --prompt-tokens, new, and then with another last turn."""
    cold, warm, cached = [], [], []
    with Client(port) as client:
        client.ask([bed.body('Hello.', 2)])
        for number in range(bed.options.rounds):
            body = conversation(bed, number, bed.options.prompt_tokens)
            first, = client.ask([body])
            body['messages'][-1]['content'] = 'And the other one?'
            again, = client.ask([body])
            cold.append(first)
            warm.append(again)
            cached.append(again.usage['prompt_tokens_details']['cached_tokens'])
    tokens = cold[0].usage['prompt_tokens']
    for name, found in (('cold', cold), ('warm', warm)):
        context = {'prompt_tokens': tokens, 'prefix': name,
                   'cached_tokens': min(cached) if name == 'warm' else max(
                       each.usage['prompt_tokens_details']['cached_tokens'] for each in cold)}
        bed.add('ttft_ms', [each.ttft_s * 1e3 for each in found], 'ms', path='http', **context)
        bed.add('ttft_ms', [each.timings['time_to_first_token_ms'] for each in found], 'ms',
                path='engine', **context)
    bed.add('warm_share', [again.ttft_s / first.ttft_s for first, again in
                           zip(cold, warm, strict=True)], 'of 1', path='http',
            prompt_tokens=tokens)
    if hasattr(bed.model, 'launches'):
        rows = prompt_bucket(tokens - min(cached))
        prompt_nodes(bed, Key(rows, 1, rows, True))


def prompt_nodes(bed: Bed, key: Key) -> None:
    """Where the device's time goes in the last prompt, whose pass had these sizes."""
    enqueue, stream = bed.model.launches(key), bed.model.stream
    bed.add('graph_us', times_us(stream, enqueue), 'us', path='node', prompt_rows=key.num_rows)
    for node in node_times(stream, enqueue):
        bed.add('node_us', [node.us], 'us', path='node', prompt_rows=key.num_rows, op=node.entry,
                count=node.count, constants=dict(node.constants))


def conversation(bed: Bed, number: int, num_tokens: int) -> dict[str, Any]:
    """Two turns of a user; the prompt has num_tokens or a few less. Numbers share no prefix."""
    words = [f'{number}', *(WORDS[(number + i) % len(WORDS)] for i in range(num_tokens))]
    low, high = 1, len(words)
    while low < high:                                    # the most words that fit
        middle = (low + high + 1) // 2
        if len(bed.ids(_two_turns(words[:middle]))) <= num_tokens:
            low = middle
        else:
            high = middle - 1
    return _two_turns(words[:low])


def _two_turns(words: Sequence[str]) -> dict[str, Any]:
    turns = [('user', ' '.join(words)), ('assistant', 'I see them.'), ('user', 'Which is first?')]
    return {'messages': [{'role': role, 'content': content} for role, content in turns],
            'max_tokens': 2, 'temperature': 0.0, 'ignore_eos': True}


def ros(bed: Bed, engine: Engine, chat: Chat) -> None:
    """A stream shown on ~/tokens too, and one beside a chat goal. It ends the engine."""
    from serving_ros import Goals, Node

    body = bed.body('Tell me about this building.', bed.options.tokens)
    other = bed.body('Tell me about that building.', bed.options.tokens)
    with Node(engine, chat) as node, Client(node.port) as client, Goals() as goals, \
            ThreadPoolExecutor(1) as pool:
        client.ask([bed.body('Hello.', 8)])
        goals.run(bed.body('Hello.', 8))
        alone, shown, pairs, beside, chunks, ros_rates = [], [], [], [], [], []
        for _ in range(bed.options.rounds):
            alone += bed.alone([body])
            before = goals.seen()
            shown += client.ask([body])
            chunks.append(shown_since(goals, before, bed))
            pairs.append(bed.alone([body, other])[0])
            goal = pool.submit(goals.run, other)
            beside += client.ask([body])
            ros_rates.append(goal.result(bench_device.TIMEOUT_S))
    for stream, answer in zip((*shown, *beside), (*alone, *alone), strict=True):
        bed.compare(stream, answer)
    bed.add('tokens_messages', chunks, 'messages', path='ros', tokens=bed.options.tokens)
    record_share(bed, alone, [each.rate for each in shown], sequences=1, beside='tokens topic')
    record_share(bed, pairs, [each.rate for each in beside], sequences=2, beside='chat goal')
    bed.add('decode_tok_s', ros_rates, 'tok/s', path='ros', sequences=2, beside='HTTP stream',
            tokens=bed.options.tokens)


def shown_since(goals: Any, before: tuple[int, int], bed: Bed, wait_s: float = 2.0) -> float:
    """Messages on ~/tokens of one stream; a fault where it did not show all of its tokens."""
    limit = time.monotonic() + wait_s                    # the last one may be on its way
    while (after := goals.seen())[1] - before[1] < bed.options.tokens:
        if time.monotonic() > limit:
            bed.faults.append('~/tokens did not show a whole HTTP stream')
            break
        time.sleep(0.05)
    return float(after[0] - before[0])


def make_engine(model: Any, config: EngineConfig, context_length: int, controls: Sequence[int],
                ) -> Engine:
    """An engine with room for 16 sequences and some prefixes that never ends an answer early."""
    page_size, chunk = config['engine.page_size'], config['engine.prefill_chunk']
    window = model.config.sliding_window
    sliding, full = plan_pages(context_length, MAX_SEQUENCES, page_size=page_size, window=window,
                               prefill_chunk=chunk)
    kept = CHECKPOINTS * window_pages(page_size, window)
    engine = Engine(model, page_size=page_size, num_sliding_pages=sliding + kept,
                    num_full_pages=full, max_sequences=MAX_SEQUENCES, max_waiting=64,
                    prefill_chunk=chunk, context_length=context_length, stop_ids=STOP_IDS,
                    suppress_tokens=tuple(sorted({*controls, *STOP_IDS})),
                    max_checkpoint_pages=kept)
    if hasattr(model, 'warm_up'):
        model.warm_up(warm_keys(MAX_SEQUENCES, model.prompt_rows))
    engine.start()
    return engine


def make_chat(engine: Engine, model: Any, config: EngineConfig, context_length: int,
              device_name: str, name: str) -> Chat:
    """A chat on the demo model's tokenizer, with a word for each id that it lacks."""
    tokenizer = wide_tokenizer(model.vocab_size)
    info = ModelInfo(
        name=name, path=name, family='gemma4', weights_format='nvfp4',
        num_parameters=model.config.num_parameters, vocab_size=model.vocab_size,
        context_length=context_length, max_context_length=context_length,
        kv_dtype=str(getattr(model, 'kv_dtype', 'float32')), max_sequences=MAX_SEQUENCES,
        device=device_name, variant='large', thinking=False, stop_ids=STOP_IDS,
        facts={'engine_version': '', 'weights_hash': '', 'template_hash': ''})
    return Chat(engine, tokenizer, info, config)


def wide_tokenizer(vocab_size: int) -> Tokenizer:
    """The demo model's tokenizer with a made-up word for each further id."""
    tokenizer = Tokenizer.from_folder(DEMO_FOLDER)
    tokenizer.pieces.extend(f' {token_id:x}' for token_id in
                            range(tokenizer.vocab_size, vocab_size))
    return tokenizer


def make_model(options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The model, and what every record says of it."""
    if options.model == 'demo':
        checkpoint = open_checkpoint(DEMO_FOLDER)
        config = ModelConfig.from_dict(checkpoint.config, checkpoint.generation_config)
        model = Gemma4(config, checkpoint.text_weights(), dtype=np.float32, kv_dtype='float32',
                       decode_threads=1, prefill_threads=1)
        return model, {'model': 'demo', 'format': 'nvfp4 as float32', 'threads': 1}
    compile_ahead(ModelConfig.from_dict(preset_config(options.model)), bench_device.PAGE_SIZE,
                  'fp8', os.cpu_count() or 1, lambda share: None)
    cuda = random_model(options.model, 'fp8', bench.LONGEST, options.layers)
    context = bench_device.context_of(cuda, f'{options.model} of random weights', 'nvfp4')
    return cuda, {**context, 'kv': 'fp8'}


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """The options, with defaults by the device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', type=Path, required=True, help='folder for the receipt')
    parser.add_argument('--commit', default='unknown')
    parser.add_argument('--seconds', type=float, default=600.0, help='parts begin before this')
    parser.add_argument('--parts', default=','.join(PARTS), help='default: %(default)s')
    parser.add_argument('--model', choices=('demo', *PRESETS), default='26b-a4b')
    parser.add_argument('--layers', type=int, help='random weights: so many layers')
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cuda')
    parser.add_argument('--tokens', type=int, help='of an answer (cpu: 512, cuda: 2048)')
    parser.add_argument('--prompt-tokens', type=int, help='of ttft (cpu: 1024, cuda: 4096)')
    parser.add_argument('--rounds', type=int, help='of each comparison (cpu: 5, cuda: 3)')
    parser.add_argument('--streams', default='1,4,16', help='default: %(default)s')
    parser.add_argument('--background', default='8,16', help='of priority (default: %(default)s)')
    options = parser.parse_args(words)
    if (options.model == 'demo') != (options.device == 'cpu'):
        parser.error('the demo model runs with --device cpu, random weights with --device cuda')
    cpu = options.device == 'cpu'
    options.tokens = options.tokens or (512 if cpu else 2048)
    options.rounds = options.rounds or (5 if cpu else 3)
    options.prompt_tokens = options.prompt_tokens or (1024 if cpu else 4096)
    for name in ('streams', 'background'):
        setattr(options, name, [int(count) for count in getattr(options, name).split(',')])
    options.parts = [part for part in PARTS if part in options.parts.split(',')
                     and not (cpu and part in ('sequences', 'kv'))]
    return options


def main(words: Sequence[str] | None = None) -> int:
    """Gives 0, or 1 when a part failed or answers differed."""
    options = parse(words)
    end = time.monotonic() + options.seconds
    cpu = options.device == 'cpu'
    reason = '' if cpu else device.find()
    if reason:
        raise SystemExit(f'serving.py needs a CUDA device, but {reason}')
    card = {'card': 'CPU', 'processor': platform.processor() or platform.machine()} if cpu else {
        'card': device.info().name, 'driver': driver_version()}
    records = Records(options.out / 'receipt-serving.json', **card, commit=options.commit,
                      command='python bench/serving.py ' + ' '.join(words or sys.argv[1:]))
    started = time.perf_counter()
    model, context = make_model(options)
    context_length = max(options.prompt_tokens, options.tokens) + 512
    config = EngineConfig.from_mapping({
        'http.port': 0, 'http.enabled': True, 'ros.publish_http': True,
        'engine.max_sequences': MAX_SEQUENCES, **({} if cpu else {
            'engine.page_size': bench_device.PAGE_SIZE,
            'engine.prefill_chunk': bench_device.CHUNK})})
    tokenizer = wide_tokenizer(model.vocab_size)
    engine = make_engine(model, config, context_length, sorted(tokenizer.control_ids))
    chat = make_chat(engine, model, config, context_length, options.device, options.model)
    bed = Bed(model, engine, chat, config, records, context, options)
    bed.add('load_s', [time.perf_counter() - started], 's')
    failed = run_parts(bed, end)
    bed.add('rss_mb', [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024], 'MB')
    if not cpu:
        free, total = device.memory()
        bed.add('device_mb', [(total - free) / 2**20], 'MB')
    for fault in sorted(set(bed.faults)):
        print(f'FAULT: {fault}', flush=True)
    return 1 if failed or bed.faults else 0


def run_parts(bed: Bed, end: float) -> int:
    """Run the parts that are wanted and begin in time; how many failed."""
    runtime = Runtime(bed.config)
    runtime.adopt(bed.engine, bed.chat)
    sidecar = Sidecar(runtime, bed.config)
    port = sidecar.start()
    share = bench_device.Bench(bed.model, bed.records, {
        name: value for name, value in bed.context.items() if name != 'kv'}, print)
    work: dict[str, Callable[[], None]] = {
        'http': lambda: http(bed, port),
        'streams': lambda: streams(bed, port, sidecar.cpu_seconds),
        'ttft': lambda: ttft(bed, port),
        'saved': lambda: saved(bed, conversation(bed, 101, bed.options.prompt_tokens)),
        'priority': lambda: priority(bed, bed.chat.model_info().context_length),
        'ros': lambda: ros(bed, bed.engine, bed.chat),
        'sequences': lambda: bench.measure_sequences(share),
        'kv': lambda: bench.measure_kv(share)}
    failures = 0
    for part in bed.options.parts:
        if part in ('ros', 'sequences', 'kv'):           # the endpoint has had its turn
            sidecar.stop(5.0)
        if part in ('sequences', 'kv'):                  # a model has one engine at a time
            bed.engine.stop()
            if not share.read_gb_s:
                share.bandwidth()
        if time.monotonic() >= end:
            print(f'-- {part}: left out, no time', flush=True)
            continue
        started = time.perf_counter()
        try:
            work[part]()
        except Exception:  # noqa: BLE001 - the other parts' figures are worth having
            traceback.print_exc()
            failures += 1
        print(f'-- {part}: {time.perf_counter() - started:.1f} s', flush=True)
    sidecar.stop(5.0)
    runtime.stop(5.0)
    return failures


if __name__ == '__main__':
    sys.exit(main())
