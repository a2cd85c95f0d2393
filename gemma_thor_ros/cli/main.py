# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Entry point of `gemma-thor`: picks the verb and imports its file alone, so that each starts
fast.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from gemma_thor_ros import __version__
from gemma_thor_ros.schema import ConfigError, RequestError

# verb -> (module in this folder, one line of help)
VERBS: dict[str, tuple[str, str]] = {
    'run': ('run', 'start node, endpoint and demo robot, and chat with the robot'),
    'chat': ('chat', 'talk to an endpoint in the terminal'),
    'bench': ('bench', 'measure this device: decode, verify, prefill, where the time goes'),
    'roofline': ('roofline', 'what the memory of a device lets a model reach'),
    'selftest': ('selftest', 'try the CUDA ops of this device against their twins'),
    'bench-http': ('bench_http', 'measure an endpoint: first token, between tokens, throughput'),
    'node': ('node', 'start the ROS node (same as ros2 run gemma_thor_ros llm_node)'),
    'guard': ('guard', 'start goal_guard (same as ros2 run gemma_thor_ros goal_guard)'),
    'demo-robot': ('demo_robot', 'start the simulated robot'),
    'render': ('render', 'JSON messages on standard input to the exact prompt'),
    'parse': ('parse', 'raw model text or token ids on standard input to an answer'),
    'quantize': ('quantize', 'a bf16 checkpoint to NVFP4'),
    'tools': ('tools', 'check a tool policy'),
    'robot': ('robot', 'look at a running node, over ROS (same as ros2 gemma)'),
    'replay': ('replay', 'run recorded requests again and report differences'),
    'eval-demo': ('eval_demo', 'measure the demo model on dialogues that it never saw'),
    'inspect': ('inspect_model', 'what a checkpoint holds and whether it can be served'),
    'synth': ('synth', 'a checkpoint of random weights in the real formats'),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; 0 = done, 1 = a check failed, 2 = wrong usage or bad input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith('-')), '')
    parser = argparse.ArgumentParser(
        prog='gemma-thor', description='Gemma 4 on the robot: node, endpoint and tools.'
    )
    parser.add_argument('--version', action='version', version=f'gemma-thor {__version__}')
    subparsers = parser.add_subparsers(dest='verb', metavar='VERB', required=True)
    for verb, (module, summary) in VERBS.items():
        if verb == chosen:
            importlib.import_module(f'gemma_thor_ros.cli.{module}').add_parser(subparsers)
        else:
            subparsers.add_parser(verb, help=summary)
    options, rest = parser.parse_known_args(arguments)
    if rest and not getattr(options, 'takes_rest', False):
        parser.error(f'unrecognized arguments: {" ".join(rest)}')
    options.rest = rest
    run = importlib.import_module(f'gemma_thor_ros.cli.{VERBS[options.verb][0]}').run
    try:
        return int(run(options))
    except (ConfigError, RequestError) as error:
        print(f'gemma-thor {options.verb}: {error}', file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == '__main__':
    sys.exit(main())
