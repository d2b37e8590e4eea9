// Code that belongs to a table runs with the rights of the table's owner, never with more.
//
// A role that only reads, plans or alters a table may run code of its owner: functions of index
// expressions and predicates, partition keys, statistics, domains, casts, generated columns,
// policies, triggers, conditions. Where our code does that, it uses this class: it runs as the
// owner and restricted, as VACUUM and REFRESH MATERIALIZED VIEW do. Names are looked up in
// pg_catalog only, so that the calling role cannot make the owner run the caller's functions.
//
// docs/architecture/trust.md lists the places.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

// Returns InvalidOid if there is no such table.
Oid owner_of(Oid table);

// Returns the one of two roles whose rights the other has too, so that code of either may run as
// that role. Returns InvalidOid if neither role has the rights of the other.
Oid weaker_of(Oid one, Oid other);

// Raises an error unless the current user has the rights of the table's owner. Returns the owner.
Oid check_owns_table(Oid table);

// Holds the rights from construction until give_back(); an error also gives them back. There is no
// destructor, because errors jump over it.
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
