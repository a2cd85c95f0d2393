# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Everything that a first run on a CUDA device should show, in one go of about ten minutes.

    python bench/gpu_session.py --out FOLDER --commit $(git rev-parse HEAD) [--seconds 600]

Each part is a process of its own with a time limit, so that a crash, a hang or a lost device
costs that part alone; what it wrote until then stays. Parts, the most wanted first: the tests of
the CUDA path, of the drafters and of images, the demo model against the CPU, its drafts, then
gemma-thor bench: decode, where the time goes, verify; drafts; sequences, 16 bit pages, prefill; an
image. Files in FOLDER: receipt-*.json, *.log, summary.txt.

Needs Python with NumPy, CuPy and threadpoolctl, for the tests pytest and hypothesis too; the
package itself is taken from this tree. No network.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAIN = 'import sys; from gemma_thor_ros.cli.main import main; sys.exit(main(sys.argv[1:]))'


def parts(out: Path, commit: str) -> list[tuple[str, list[str], int]]:
    """What is run, in this order."""
    tests = {'model_tests': ['test_cuda_model.py', 'test_cuda_load.py'],
             'draft_tests': ['test_draft_ops.py', 'test_cuda_drafters.py'],
             'image_tests': ['test_vision_ops.py', 'test_cuda_vision.py', 'test_cuda_images.py']}
    found: list[tuple[str, list[str], int]] = [
        *((name, ['-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-x',
                  *(str(ROOT / 'test' / 'kernels' / file) for file in files)], 130)
          for name, files in tests.items()),
        ('demo', [str(ROOT / 'bench' / 'device_errors.py'), '--receipt',
                  str(out / 'receipt-demo.json'), '--commit', commit], 60),
        ('demo_drafts', [str(ROOT / 'bench' / 'device_drafts.py'), '--receipt',
                         str(out / 'receipt-demo-drafts.json'), '--commit', commit], 90)]
    # all parts of a group share the model, whose making takes longest
    for group in (('decode', 'nodes', 'verify'), ('draft',), ('sequences', 'fp8', 'prefill'),
                  ('tower',)):
        found.append(('-'.join(group), [
            '-c', MAIN, 'bench', '--parts', ','.join(group), '--commit', commit, '--receipt',
            str(out / f'receipt-{"-".join(group)}.json')], 190))
    return found


def run(name: str, words: list[str], limit_s: float, out: Path) -> str:
    """Run one part; one line on how it ended."""
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get('PYTHONPATH', '')])), 'PYTHONUNBUFFERED': '1'}
    started = time.monotonic()
    log = out / f'{name}.log'
    with log.open('w', encoding='utf-8') as file:
        try:
            code = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, stdout=file,
                                  stderr=subprocess.STDOUT, timeout=limit_s, check=False
                                  ).returncode
            end = f'ended with {code}'
        except subprocess.TimeoutExpired:
            end = f'cut off after {limit_s:.0f} s'
    tail = log.read_text(encoding='utf-8', errors='replace').splitlines()[-45:]
    return '\n'.join([f'== {name}: {end}, {time.monotonic() - started:.0f} s', *tail])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', type=Path, required=True, help='folder for what comes out')
    parser.add_argument('--commit', default='unknown')
    parser.add_argument('--seconds', type=float, default=600.0, help='for all parts together')
    parser.add_argument('--only', default='', help='names of parts, with commas between')
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + arguments.seconds
    summary = arguments.out / 'summary.txt'
    failed = False
    for name, words, limit_s in parts(arguments.out, arguments.commit):
        if arguments.only and name not in arguments.only.split(','):
            continue
        left = end - time.monotonic()
        text = f'== {name}: left out, no time'
        if left > 10.0:
            text = run(name, words, min(left, limit_s), arguments.out)
        failed |= 'ended with 0' not in text.splitlines()[0]
        with summary.open('a', encoding='utf-8') as file:
            file.write(text + '\n')
        print(text, flush=True)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
