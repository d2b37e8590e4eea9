-- A trigger on each event would cost more than the insert. They are enabled while rows of a dump are
-- restored: see docs/editions.md.
ALTER TABLE outbox.event_0 DISABLE TRIGGER adopt_event;
ALTER TABLE outbox.event_1 DISABLE TRIGGER adopt_event;
ALTER TABLE outbox.event_2 DISABLE TRIGGER adopt_event;
ALTER TABLE outbox.event_3 DISABLE TRIGGER adopt_event;
