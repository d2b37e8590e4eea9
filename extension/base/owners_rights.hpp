// Code that belongs to a table runs with the rights of the table's owner, never with more.
//
// Whoever reads, plans or merely alters a table can run code of its owner: functions of index
// expressions and predicates, partition keys, statistics, domains, casts, generated columns,
// policies, triggers, conditions. So whatever of ours does that, does it in here: as the owner and
// restricted, as VACUUM and REFRESH MATERIALIZED VIEW do it. Names are looked up in pg_catalog
// only: the role that happens to be at work must not be able to lend the owner its functions.
//
// docs/architecture/trust.md lists the places.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

// InvalidOid: there is no such table.
Oid owner_of(Oid table);

// Of two roles the one whose rights the other has, too: code of either may run as that one.
// InvalidOid: neither has the rights of the other.
Oid weaker_of(Oid one, Oid other);

// Raises an error unless the current user has the rights of the table's owner. Returns the owner.
Oid check_owns_table(Oid table);

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
