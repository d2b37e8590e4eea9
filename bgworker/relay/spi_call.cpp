#include "bgworker/relay/spi_call.hpp"

#include "bgworker/base/worker.hpp"
#include "extension/base/boundary.hpp"

namespace outbox {

// Conversions are looked up in the catalog.
void prepare_calls() {
    begin_work("starting");
    SetConfigOption("client_encoding", "UTF8", PGC_USERSET, PGC_S_OVERRIDE);
    end_work();
}

static Datum received(Oid type, std::string_view bytes) {
    Oid function, parameter;
    getTypeBinaryInputInfo(type, &function, &parameter);
    StringInfoData buffer;  // a copy: elements of arrays are terminated in place
    initStringInfo(&buffer);
    appendBinaryStringInfo(&buffer, bytes.data(), static_cast<int>(bytes.size()));
    return OidReceiveFunctionCall(function, &buffer, parameter, -1);
}

static void execute(const sql::Call& call) {
    const sql::Parameters& parameters = call.parameters;
    const size_t count = parameters.size();
    auto* values = static_cast<Datum*>(palloc0(count * sizeof(Datum)));
    auto* nulls = static_cast<char*>(palloc(count));
    for (size_t i = 0; i < count; i++) {
        nulls[i] = parameters.is_null(i) ? 'n' : ' ';
        if (!parameters.is_null(i))
            values[i] = received(parameters.types()[i], parameters.bytes(i));
    }
    const int code =
        SPI_execute_with_args(call.text, static_cast<int>(count),
                              const_cast<Oid*>(parameters.types()), values, nulls, false, 0);
    if (code != SPI_OK_SELECT)
        elog(ERROR, "could not run \"%s\": %s", call.text, SPI_result_code_string(code));
}

static void add_columns(TupleDesc form, Oid* send_functions, sql::CopiedRows& rows) {
    for (int i = 0; i < form->natts; i++) {
        const Form_pg_attribute column = TupleDescAttr(form, i);
        bool is_varlena;
        getTypeBinaryOutputInfo(column->atttypid, &send_functions[i], &is_varlena);
        run_core([&] { rows.add_column(NameStr(column->attname), column->atttypid); });
    }
}

static void add_value(Datum value, bool is_null, Oid send_function, sql::CopiedRows& rows) {
    if (is_null) {
        run_core([&] { rows.add(std::nullopt); });
        return;
    }
    bytea* sent = OidSendFunctionCall(send_function, value);
    run_core([&] { rows.add(std::string_view(VARDATA_ANY(sent), VARSIZE_ANY_EXHDR(sent))); });
    pfree(sent);
}

void run_call(const sql::Call& call, sql::CopiedRows& rows) {
    execute(call);
    const TupleDesc form = SPI_tuptable->tupdesc;
    auto* send_functions =
        static_cast<Oid*>(palloc(static_cast<size_t>(form->natts) * sizeof(Oid)));
    add_columns(form, send_functions, rows);
    for (uint64 row = 0; row < SPI_processed; row++)
        for (int i = 0; i < form->natts; i++) {
            bool is_null;
            const Datum value = SPI_getbinval(SPI_tuptable->vals[row], form, i + 1, &is_null);
            add_value(value, is_null, send_functions[i], rows);
        }
}

}  // namespace outbox
