# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Print the requirements in pyproject.toml, one a line, so that each pin is written once.

    python scripts/requirements.py [build] [run] [test] [dev] [cuda]

It runs before anything is installed, so it uses the standard library alone.
"""
import pathlib
import sys
import tomllib

PYPROJECT = pathlib.Path(__file__).resolve().parent.parent / 'pyproject.toml'


def requirements(groups: list[str]) -> list[str]:
    """Return the requirements of the named groups in order, each once."""
    table = tomllib.loads(PYPROJECT.read_text(encoding='utf-8'))
    lists = {'build': table['build-system']['requires'],
             'run': table['project']['dependencies'],
             **table['project']['optional-dependencies']}
    unknown = sorted(set(groups) - set(lists))
    if unknown:
        raise SystemExit(f'no such group: {", ".join(unknown)}; there are {", ".join(lists)}')
    return list(dict.fromkeys(line for group in groups for line in lists[group]))


if __name__ == '__main__':
    sys.stdout.write('\n'.join(requirements(sys.argv[1:] or ['build', 'run', 'test'])) + '\n')
