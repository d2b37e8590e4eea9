#include "table_form.hpp"

namespace outbox {

[[noreturn]] static void refuse_form(Relation table, int column) {
    const Form_pg_attribute attribute =
        column < RelationGetDescr(table)->natts ? TupleDescAttr(RelationGetDescr(table), column)
                                                : nullptr;
    ereport(ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("table \"%s\" of extension \"pg_outbox\" was altered",
                    RelationGetRelationName(table)),
             attribute == nullptr        ? errdetail("Column %d is missing.", column + 1)
             : attribute->attisdropped   ? errdetail("Column %d was dropped.", column + 1)
                                         : errdetail("Column %d, \"%s\" of type %s, is not its own.",
                                                     column + 1, NameStr(attribute->attname),
                                                     format_type_be(attribute->atttypid)),
             errhint("Give it back the columns that CREATE EXTENSION gave it.")));
}

void check_columns(Relation table, std::span<const Oid> types, bool others) {
    TupleDesc form = RelationGetDescr(table);
    const int count = static_cast<int>(types.size());
    for (int i = 0; i < count; i++)
        if (i >= form->natts || TupleDescAttr(form, i)->atttypid != types[i])
            refuse_form(table, i);
    for (int i = count; !others && i < form->natts; i++)
        if (!TupleDescAttr(form, i)->attisdropped)
            refuse_form(table, i);
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
