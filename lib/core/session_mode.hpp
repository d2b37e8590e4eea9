// How long a session of the database has its server process.
#pragma once

namespace outbox {

enum class SessionMode {
    automatic,  // pooled if a pooler answers: PQbackendPID() differs from pg_backend_pid()
    direct,     // a session keeps its server process, so it may hold locks and listen
    pooled,     // nothing that belongs to a session survives a statement
};

}  // namespace outbox
