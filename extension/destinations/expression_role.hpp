// Whose rights the expressions of a destination have.
//
// An expression belongs to the role that owned the foreign server when its option was set: that role
// could decide what it says. outbox.expression keeps this role, by OID; the event trigger
// outbox_note_expressions writes it, and nothing else, not even a restore. While that role has the
// rights of the present owner, the expression runs as the present owner. Otherwise, as after ALTER
// SERVER ... OWNER TO, REASSIGN OWNED or DROP ROLE, it waits until the option is set again: functions
// that it calls may still be those of the former owner. The rights of a superuser are used for no
// expression: one of a superuser has those of everybody (nobody in sandbox.hpp).
#pragma once

#include "extension/destinations/expressions.hpp"

namespace outbox {

// Sets the role that the expressions run as. Returns why there is none, if they wait.
const char* find_role(const char* destination, Oid owner, const ExpressionTexts& texts, Oid& role);

// True if expressions of servers of this owner may run in a session of this role: it gets no rights
// that it lacks, and code of others cannot act on a session of a superuser.
bool may_run_for(Oid caller, Oid owner);

}  // namespace outbox
