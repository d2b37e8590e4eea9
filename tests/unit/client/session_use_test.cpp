#include "session_use.hpp"

#include <gtest/gtest.h>

namespace inbox {
namespace {

TEST(SessionUse, RowsAreNoChange) {
    for (const char* statement :
         {"SELECT 1", "insert INTO t VALUES ($1)", " \n(SELECT 1)",
          "/* trace */ UPDATE t SET a = 1", "-- why\nDELETE FROM t",
          "WITH x AS (SELECT 1) SELECT * FROM x", "MERGE INTO t USING s ON true", "VALUES (1)",
          "TABLE t", "SELECT inbox.apply($1::regclass, $2::text[], $3, $4::jsonb)"})
        EXPECT_FALSE(may_change_session(statement)) << statement;
}

TEST(SessionUse, AllElseMayBe) {
    for (const char* statement :
         {"SET search_path = a", "set local x = 1", "/* SELECT */ SET x = 1",
          "CREATE TEMP TABLE t ()", "DO $$ $$", "CALL p()", "PREPARE s AS SELECT 1", "LISTEN x",
          "SELECT pg_catalog.Set_Config('a', 'b', false)", "SELECT pg_try_advisory_lock(1)",
          "SELECT 1 INTO TEMP t", "selected", "", "/* no end", "--"})
        EXPECT_TRUE(may_change_session(statement)) << statement;
}

}  // namespace
}  // namespace inbox
