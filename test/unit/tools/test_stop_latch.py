# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

from gemma_thor_ros.ros.stop_latch import LatchFile, Stops


def stops(*topics: str, path: Path | None = None) -> Stops:
    made = Stops(topics, 0.5, LatchFile(path))
    for source in made.inputs.values():
        source.num_publishers = 1
    return made


def test_without_a_source_nothing_is_stopped() -> None:
    assert stops().reason(0.0) == ''


def test_stopped_until_the_first_false() -> None:
    made = stops('/stop')
    assert made.reason(0.0) == '/stop: no message yet'
    made.on_message('/stop', False, 1.0)
    assert made.reason(1.0) == '' and not made.latched


def test_all_sources_must_say_false() -> None:
    made = stops('/a', '/b')
    made.on_message('/a', False, 1.0)
    assert made.reason(1.0) == '/b: no message yet'
    made.on_message('/b', False, 1.0)
    assert made.reason(1.0) == ''


def test_an_old_message_stops_and_a_new_one_ends_it() -> None:
    made = stops('/stop')
    made.on_message('/stop', False, 1.0)
    assert made.reason(1.5) == ''
    assert made.reason(1.51) == '/stop: older than 0.5 s'
    made.on_message('/stop', False, 1.6)
    assert made.reason(1.6) == ''


def test_two_publishers_stop_though_both_say_false() -> None:
    made = stops('/stop')
    made.on_message('/stop', False, 1.0)
    made.inputs['/stop'].num_publishers = 2
    assert made.reason(1.0) == '/stop: 2 publishers'


def test_incompatible_qos_stops_until_a_message_of_the_only_publisher() -> None:
    made = stops('/stop')
    made.on_message('/stop', False, 1.0)
    made.on_incompatible('/stop')
    assert made.reason(1.0) == '/stop: incompatible QoS'
    made.inputs['/stop'].num_publishers = 2
    made.on_message('/stop', False, 1.1)
    assert made.inputs['/stop'].incompatible
    made.inputs['/stop'].num_publishers = 1
    made.on_message('/stop', False, 1.2)
    assert made.reason(1.2) == ''


def test_true_latches_and_only_a_release_opens() -> None:
    made = stops('/stop')
    made.on_message('/stop', True, 1.0)
    assert made.latched
    assert 'still stopped: /stop: true received' in made.release('Ann', 'checked', 1.0)
    made.on_message('/stop', False, 1.1)
    assert 'latched (/stop said true)' in made.reason(1.1)
    assert 'required' in made.release('', 'checked', 1.1)
    assert 'required' in made.release('Ann', '  ', 1.1)
    assert 'older than' in made.release('Ann', 'checked', 2.0)
    made.on_message('/stop', False, 2.1)
    assert made.release('Ann', 'checked', 2.1) == ''
    assert made.reason(2.1) == ''


def test_the_latch_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / 'deep' / 'guard.json'
    made = stops('/stop', path=path)
    made.on_message('/stop', True, 1.0)
    again = stops('/stop', path=path)
    again.on_message('/stop', False, 1.0)
    assert again.latched and '/stop said true' in again.reason(1.0)
    assert again.release('Ann', 'checked', 1.0) == ''
    assert json.loads(path.read_text())['released_by'] == 'Ann'
    assert not stops('/stop', path=path).latched


def test_a_damaged_state_file_counts_as_latched(tmp_path: Path) -> None:
    path = tmp_path / 'guard.json'
    for text in ('', '{', '[]', '{"latched": 1, "reason": ""}', '{"reason": ""}'):
        path.write_text(text)
        assert stops(path=path).latched, text
    path.unlink()
    path.mkdir()
    assert stops(path=path).latched


def test_a_state_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    file_in_the_way = tmp_path / 'x'
    file_in_the_way.write_text('')
    made = stops('/stop')
    made._file = LatchFile(file_in_the_way / 'guard.json')
    made.on_message('/stop', True, 1.0)
    assert made.latched and 'cannot be written' in made.fault


def test_a_state_file_is_proved_at_the_start_and_keeps_what_it_says(tmp_path: Path) -> None:
    blocked = tmp_path / 'x'
    blocked.write_text('')
    fault = LatchFile(blocked / 'guard.json').prove()
    assert 'cannot be written' in fault and "'none'" in fault
    assert LatchFile(None).prove() == ''
    path = tmp_path / 'guard.json'
    assert LatchFile(path).prove() == '' and LatchFile(path).load() == (False, '')
    made = stops('/stop', path=path)
    made.on_message('/stop', True, 1.0)
    assert LatchFile(path).prove() == '' and LatchFile(path).load() == (True, '/stop said true')
    path.write_text('{')
    assert LatchFile(path).prove() == '' and LatchFile(path).load()[0]


def test_a_latch_that_was_not_written_is_written_later(tmp_path: Path) -> None:
    folder = tmp_path / 'disk'
    folder.write_text('')
    made = stops('/stop', path=folder / 'guard.json')
    made.latched, made.latch_reason = False, ''      # as at a start when the disk was there
    made.on_message('/stop', True, 1.0)
    assert 'a restart would forget the latch' in made.reason(1.0)
    folder.unlink()
    made.tick(1.5)
    assert made.fault, 'the disk is asked again after a second, not at every tick'
    made.tick(2.1)
    assert not made.fault and 'forget' not in made.reason(2.1)
    assert stops('/stop', path=folder / 'guard.json').latched
