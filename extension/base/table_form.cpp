#include "extension/base/table_form.hpp"

namespace outbox {

Oid find_own_table(const char* name) {
    const Oid table = get_relname_relid(name, get_namespace_oid("outbox", false));
    if (!OidIsValid(table))
        ereport(ERROR,
                (errcode(ERRCODE_UNDEFINED_TABLE), errmsg("table outbox.%s does not exist", name),
                 errhint("If it was renamed, rename it back.")));
    return table;
}

Relation open_own_table(Oid table, LOCKMODE mode) {
    Relation opened = try_table_open(table, mode);
    if (opened == nullptr)
        ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
                        errmsg("pg_outbox was replaced or removed by a concurrent transaction"),
                        errhint("Try the transaction again.")));
    return opened;
}

[[noreturn]] static void refuse_form(const char* name, TupleDesc form, int column) {
    const Form_pg_attribute attribute =
        column < form->natts ? TupleDescAttr(form, column) : nullptr;
    ereport(ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("\"%s\" of extension \"pg_outbox\" was altered", name),
             attribute == nullptr ? errdetail("Column %d is missing.", column + 1)
             : attribute->attisdropped
                 ? errdetail("Column %d was dropped.", column + 1)
                 : errdetail("Column %d, \"%s\" of type %s, does not belong to it.", column + 1,
                             NameStr(attribute->attname), format_type_be(attribute->atttypid)),
             errhint("Give it back the columns that CREATE EXTENSION gave it.")));
}

void check_attributes(const char* type, TupleDesc form, std::span<const Oid> types, bool others) {
    const int count = static_cast<int>(types.size());
    for (int i = 0; i < count; i++)
        if (i >= form->natts || TupleDescAttr(form, i)->atttypid != types[i])
            refuse_form(type, form, i);
    for (int i = count; !others && i < form->natts; i++)
        if (!TupleDescAttr(form, i)->attisdropped)
            refuse_form(type, form, i);
}

void check_columns(Relation table, std::span<const Oid> types, bool others) {
    if (table->rd_rel->relkind != RELKIND_RELATION)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("\"%s\" of extension \"pg_outbox\" was altered",
                               RelationGetRelationName(table)),
                        errdetail("It is no longer a table.")));
    check_attributes(RelationGetRelationName(table), RelationGetDescr(table), types, others);
}

void check_value(Relation table, TupleTableSlot* row, int column) {
    if (row->tts_isnull[column])
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                 errmsg("null value in column \"%s\" of table \"%s\" of extension \"pg_outbox\"",
                        NameStr(TupleDescAttr(RelationGetDescr(table), column)->attname),
                        RelationGetRelationName(table)),
                 errhint("Give the row a value, or delete it.")));
}

}  // namespace outbox
