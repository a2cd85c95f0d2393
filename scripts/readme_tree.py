# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Writes the tree in README.md, one line for each file: the first sentence of its own description.

python scripts/readme_tree.py            # write it
python scripts/readme_tree.py --check    # exit code 1 when README.md holds another one
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONG = 90                        # a description longer than this is cut at its first colon too
BEGIN, END = '<!-- tree: made by scripts/readme_tree.py -->', '<!-- end of tree -->'
FOLDERS = ('gemma_thor_ros', 'kernels', 'launch', 'config', 'scripts', 'bench', 'demo_model')
SUFFIXES = ('.py', '.cu', '.cuh', '.yaml', '.sh')
SUMMARIES = {
    'msg/': 'messages; each field with unit and default',
    'srv/': 'services',
    'action/': 'actions: chat, what the node asks of the guard, the demo robot',
    'test/': 'unit, model (exactness, goldens), server, ros, kernels (GPU)',
    'docs/': 'one page a subject',
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else '')
    parser.add_argument('--check', action='store_true', help='write nothing')
    options = parser.parse_args()
    path = ROOT / 'README.md'
    text = path.read_text(encoding='utf-8')
    wanted = f'{BEGIN}\n```\n{tree()}\n```\n{END}'
    pattern = re.compile(re.escape(BEGIN) + '.*?' + re.escape(END), re.DOTALL)
    if not pattern.search(text):
        print(f'README.md lacks the line {BEGIN}', file=sys.stderr)
        return 1
    if wanted in text:
        return 0
    if options.check:
        print('The tree in README.md is old: run scripts/readme_tree.py', file=sys.stderr)
        return 1
    path.write_text(pattern.sub(lambda _: wanted, text), encoding='utf-8')
    return 0


def tree() -> str:
    """Return the lines of the tree."""
    listed = subprocess.run(['git', 'ls-files', '--', *FOLDERS], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.split()
    lines = [f'{name:<24}{summary}' for name, summary in SUMMARIES.items()]
    folder = ''
    for name in sorted(listed, key=lambda item: (item.rpartition('/')[0], item)):
        path = Path(name)
        if path.suffix not in SUFFIXES:
            continue
        if str(path.parent) != folder:
            folder = str(path.parent)
            lines.append(f'{folder}/')
        if path.name == '__init__.py' and folder != 'gemma_thor_ros':
            continue
        lines.append(f'  {path.name:<21} {describe(ROOT / path)}')
    return '\n'.join(lines)


def describe(path: Path) -> str:
    """Return the first sentence of a file's docstring or of its opening comment."""
    text = path.read_text(encoding='utf-8')
    if path.suffix == '.py':
        body = ast.get_docstring(ast.parse(text)) or ''
    else:
        comment = re.compile(r'^(?:#|//|/\*+|\*)\s?')
        lines = [comment.sub('', line.strip()) for line in text.splitlines()[:20]
                 if comment.match(line.strip()) and not line.startswith('#!')]
        body = '\n'.join(line for line in lines if 'Copyright' not in line and 'SPDX' not in line)
    first = body.strip().split('\n\n')[0].replace('\n', ' ')
    return re.split(r'[.:;](?:\s|$)' if len(first) > LONG else r'[.](?:\s|$)', first)[0]


if __name__ == '__main__':
    sys.exit(main())
