# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Make an installed gemma_thor_ros read its Python modules from this source tree, and undo it.

    .venv/bin/python scripts/link_sources.py           # link: edits are live
    .venv/bin/python scripts/link_sources.py --unlink  # before pip touches the package again

Each module and sub-package in the environment's site-packages becomes a symbolic link; what was
generated from msg/, srv/ and action/, and the compiled type supports, stay where they are.
"""
import argparse
import pathlib
import shutil
import sys
import sysconfig

NAME = 'gemma_thor_ros'
SOURCE = pathlib.Path(__file__).resolve().parent.parent / NAME


def installed_folder() -> pathlib.Path:
    """Return the package's folder in this interpreter's site-packages."""
    return pathlib.Path(sysconfig.get_path('platlib')) / NAME


def unlink(installed: pathlib.Path) -> None:
    """Remove every link, so that an uninstall can never reach through one."""
    for path in installed.iterdir():
        if path.is_symlink():
            path.unlink()


def link(installed: pathlib.Path, source: pathlib.Path) -> list[str]:
    """Replace the installed copies by links into `source`; return the linked names."""
    names = sorted(path.name for path in source.iterdir() if path.name != '__pycache__')
    for name in names:
        target = installed / name
        if target.is_symlink() or target.is_file():
            target.unlink()
        elif target.is_dir():
            shutil.rmtree(target)
        target.symlink_to(source / name)
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--unlink', action='store_true', help='only remove the links')
    arguments = parser.parse_args()
    installed = installed_folder()
    if installed.is_symlink() or SOURCE in (installed, *installed.parents):
        raise SystemExit(f'{installed} is the source tree itself')
    if not installed.is_dir():
        if arguments.unlink:
            return 0
        raise SystemExit(f'{NAME} is not installed for {sys.executable}; run `make dev`')
    unlink(installed)
    if not arguments.unlink:
        names = link(installed, SOURCE)
        sys.stdout.write(f'{installed}: {len(names)} names linked to {SOURCE}\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
