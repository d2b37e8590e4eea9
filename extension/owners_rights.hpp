// Code that belongs to a table (functions of its conditions, types and indexes) runs with the
// rights of the table's owner when we and not the owner have it run, as VACUUM and REFRESH
// MATERIALIZED VIEW do it. Names in it are looked up in pg_catalog only: whoever happens to be at
// work must not be able to lend the owner functions of his own.
#pragma once

#include "pg.hpp"

namespace outbox {

inline Oid owner_of(Oid table) {
    HeapTuple row = SearchSysCache1(RELOID, ObjectIdGetDatum(table));
    if (!HeapTupleIsValid(row))
        return InvalidOid;
    const Oid owner = reinterpret_cast<Form_pg_class>(GETSTRUCT(row))->relowner;
    ReleaseSysCache(row);
    return owner;
}

// From construction until give_back(); an error gives them back by itself. No destructor, for
// errors jump over it.
class [[nodiscard]] OwnersRights {
  public:
    explicit OwnersRights(Oid owner) {
        GetUserIdAndSecContext(&user_, &context_);
        SetUserIdAndSecContext(owner, context_ | SECURITY_RESTRICTED_OPERATION);
        settings_ = NewGUCNestLevel();
        set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
                          GUC_ACTION_SAVE, true, 0, false);
    }
    void give_back() const {
        AtEOXact_GUC(false, settings_);
        SetUserIdAndSecContext(user_, context_);
    }

  private:
    Oid user_;
    int context_;
    int settings_;
};

}  // namespace outbox
