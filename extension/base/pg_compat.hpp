// Differences between the supported major versions (15 to 18), under names that say what is meant.
// No other file uses PG_VERSION_NUM.
#pragma once

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 190000
#error "pg_outbox supports PostgreSQL 15 to 18"
#endif

// Version 15 exports nothing on ELF systems, so with hidden visibility the module would have no
// entry points. Version 16 exports them (commit 089480c07705).
#if PG_VERSION_NUM < 160000
#undef PGDLLEXPORT
#define PGDLLEXPORT __attribute__((visibility("default")))
extern "C" PGDLLEXPORT void _PG_init(void);
#endif

namespace outbox::compat {

// In 17 a wait event set belongs to a resource owner; without one it lives as long as the process.
// Before 17 the memory context decides that (commit 50c67c2019ab).
inline WaitEventSet* create_process_wait_event_set(int events) {
#if PG_VERSION_NUM >= 170000
    return CreateWaitEventSet(nullptr, events);
#else
    return CreateWaitEventSet(TopMemoryContext, events);
#endif
}

// 17 names the index of a process in ProcGlobal (commit 024c52111757).
inline int my_proc_number() {
#if PG_VERSION_NUM >= 170000
    return MyProcNumber;
#else
    return MyProc->pgprocno;
#endif
}

// Transactions that have completed since the server started. 17 renames the variable.
inline uint64 completed_transactions() {
#if PG_VERSION_NUM >= 170000
    return TransamVariables->xactCompletionCount;
#else
    return ShmemVariableCache->xactCompletionCount;
#endif
}

// 16 has one ownership check for all kinds of objects (commit afbfc02983f8).
inline bool owns_database(Oid database, Oid role) {
#if PG_VERSION_NUM >= 160000
    return object_ownercheck(DatabaseRelationId, database, role);
#else
    return pg_database_ownercheck(database, role);
#endif
}

inline bool owns_extension(Oid extension, Oid role) {
#if PG_VERSION_NUM >= 160000
    return object_ownercheck(ExtensionRelationId, extension, role);
#else
    return pg_extension_ownercheck(extension, role);
#endif
}

inline bool owns_schema(Oid schema, Oid role) {
#if PG_VERSION_NUM >= 160000
    return object_ownercheck(NamespaceRelationId, schema, role);
#else
    return pg_namespace_ownercheck(schema, role);
#endif
}

// 16 declares the walker's parameters (commit 1c27d16e6e5c).
inline bool walk_expression(Node* node, bool (*walker)(Node*, void*), void* context) {
#if PG_VERSION_NUM >= 160000
    return expression_tree_walker(node, walker, context);
#else
    return expression_tree_walker(
        node, reinterpret_cast<bool (*)()>(reinterpret_cast<void*>(walker)), context);
#endif
}

inline bool may_execute(Oid function, Oid role) {
#if PG_VERSION_NUM >= 160000
    return object_aclcheck(ProcedureRelationId, function, role, ACL_EXECUTE) == ACLCHECK_OK;
#else
    return pg_proc_aclcheck(function, role, ACL_EXECUTE) == ACLCHECK_OK;
#endif
}

// 16 added the argument for updates that touch summarizing indexes only (commit 19d8e2308bc5).
inline void insert_index_entries(ResultRelInfo* relation, TupleTableSlot* slot, EState* estate) {
#if PG_VERSION_NUM >= 160000
    ExecInsertIndexTuples(relation, slot, estate, false, false, nullptr, NIL, false);
#else
    ExecInsertIndexTuples(relation, slot, estate, false, false, nullptr, NIL);
#endif
}

// 18 added a place for counters (commit 0fbceae841cb).
inline IndexScanDesc begin_index_scan(Relation table, Relation index, ::Snapshot snapshot,
                                      int keys) {
#if PG_VERSION_NUM >= 180000
    return index_beginscan(table, index, snapshot, nullptr, keys, 0);
#else
    return index_beginscan(table, index, snapshot, keys, 0);
#endif
}

// 16 reports a short read by itself (commit 20428d344a20).
inline void read_exactly(BufFile* file, void* to, size_t size) {
#if PG_VERSION_NUM >= 160000
    BufFileReadExact(file, to, size);
#else
    if (BufFileRead(file, to, size) != size) {
        const char* why = strerror(errno);  // ISO C++ knows no %m
        ereport(ERROR,
                (errcode_for_file_access(), errmsg("could not read from temporary file: %s", why)));
    }
#endif
}

// 18 has generated columns without a stored value (commit 83ea6c54025b).
inline bool is_virtual([[maybe_unused]] Form_pg_attribute attribute) {
#if PG_VERSION_NUM >= 180000
    return attribute->attgenerated == ATTRIBUTE_GENERATED_VIRTUAL;
#else
    return false;
#endif
}

// Extensions can name their own wait events since 17 (commit c9af05465307).
inline uint32 wait_event([[maybe_unused]] const char* name) {
#if PG_VERSION_NUM >= 170000
    return WaitEventExtensionNew(name);
#else
    return PG_WAIT_EXTENSION;
#endif
}

// Returns false if the lock is not free, or the lock table is full. 18 can log a failure.
inline bool try_lock(const LOCKTAG& tag, LOCKMODE mode) {
#if PG_VERSION_NUM >= 180000
    return LockAcquireExtended(&tag, mode, false, true, false, nullptr, false) !=
           LOCKACQUIRE_NOT_AVAIL;
#else
    return LockAcquireExtended(&tag, mode, false, true, false, nullptr) != LOCKACQUIRE_NOT_AVAIL;
#endif
}

// Name by which a background worker finds this module. Version 18 looks for modules outside the
// library directory only if the name has no directory (commit 4f7f7b037585). Debian's patch for
// earlier versions needs the directory.
#if PG_VERSION_NUM >= 180000
constexpr const char* module_name = "pg_outbox";
#else
constexpr const char* module_name = "$libdir/pg_outbox";
#endif

}  // namespace outbox::compat
