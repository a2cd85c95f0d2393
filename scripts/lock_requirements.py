# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Write constraints.txt: the version of everything that pyproject.toml's requirements bring along.

    .venv/bin/python scripts/lock_requirements.py

pip resolves all groups together, without installing anything. What pyproject.toml pins itself is
left out, so that each version stands in one place. Versions that differ between Pythons belong
into pyproject.toml, with a marker.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from requirements import requirements

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADER = """\
# Made by scripts/lock_requirements.py: what the requirements in pyproject.toml bring along.
# The ROS 2 wheels of Kilted; the same names with lower versions are Jazzy's.
"""


def normal(name: str) -> str:
    """Return a package's name as PyPI compares names."""
    return re.sub('[-_.]+', '-', name).lower()


def resolve(wanted: list[str], pins: list[str]) -> dict[str, str]:
    """Return the version of each package that pip would install in an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        report, constraints = pathlib.Path(folder) / 'report', pathlib.Path(folder) / 'pins'
        constraints.write_text('\n'.join(pins), encoding='utf-8')
        subprocess.run([sys.executable, '-m', 'pip', 'install', '--quiet', '--dry-run',
                        '--ignore-installed', '--report', str(report),
                        '--constraint', str(constraints), *wanted], check=True)
        installs = json.loads(report.read_text(encoding='utf-8'))['install']
    return {normal(item['metadata']['name']): item['metadata']['version'] for item in installs}


def main() -> None:
    wanted = requirements(['build', 'run', 'test'])
    own = {normal(re.split('[=<>!~ ;]', line)[0]) for line in wanted}
    path = ROOT / 'constraints.txt'
    # ROS 2 releases share names, so the ROS pins there are kept; raise them by hand, together.
    kept = [line for line in path.read_text(encoding='utf-8').splitlines()
            if line.startswith(('ros-', 'empy', 'lark'))] if path.is_file() else []
    versions = resolve(wanted, kept)
    lines = [f'{name}=={version}' for name, version in sorted(versions.items())
             if name not in own]
    path.write_text(HEADER + '\n'.join(lines) + '\n', encoding='utf-8')


if __name__ == '__main__':
    main()
