"""Events whose handler always fails: they become dead letters, the health view reports them, and when the
cause is gone they are applied after all."""

from __future__ import annotations

from .replica import MakeReplicaDrill, ReplicaDrill

POISON = {("3", 2), ("5", 3), ("7", 1), ("7", 4)}


def alerts(drill: ReplicaDrill) -> list[str]:
    return [what for (what,) in drill.target.execute("SELECT what FROM inbox.health()")]


def test_poison_becomes_dead_letters_and_other_keys_go_on(make_replica_drill: MakeReplicaDrill) -> None:
    drill = make_replica_drill()
    for key, version in POISON:
        drill.poison(key, version)
    consumer = drill.consume(max_attempts=3)
    with drill.load():
        drill.wait(drill.target.dead_letters, lambda dead: len(dead) == len(POISON), "dead letters")
        drill.wait_applied(100)
    dead = {drill.event_id(key, version) for key, version in POISON}
    assert {(id, attempts) for id, attempts, _, _ in drill.target.dead_letters()} == {(id, 3) for id in dead}
    assert f'inbox_dead_total{{consumer="c"}} {len(POISON)}|' in consumer.command("metrics")
    assert "dead letters" in alerts(drill)
    drill.cure()
    drill.target.execute("SELECT inbox.redrive('c', NULL, 'the handler is mended')")
    drill.conclude(apart=dead)
    assert drill.target.dead_letters() == []
    assert "dead letters" not in alerts(drill)
