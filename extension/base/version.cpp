#include "extension/base/version.hpp"

#include "extension/base/pg.hpp"

namespace outbox {

// Returns the version of the SQL objects; nullptr if the extension is not installed.
static const char* installed_version(const char* extension) {
    const char* version = nullptr;
    Relation catalog = table_open(ExtensionRelationId, AccessShareLock);
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ,
                CStringGetDatum(extension));
    SysScanDesc scan = systable_beginscan(catalog, ExtensionNameIndexId, true, nullptr, 1, &key);
    if (HeapTuple row = systable_getnext(scan); HeapTupleIsValid(row)) {
        bool is_null;
        const Datum value =
            heap_getattr(row, Anum_pg_extension_extversion, RelationGetDescr(catalog), &is_null);
        version = TextDatumGetCString(value);
    }
    systable_endscan(scan);
    table_close(catalog, AccessShareLock);
    return version;
}

// Returns the first two numbers of a version as one number that can be compared.
static long generation(const char* version) {
    char* rest;
    const long major = strtol(version, &rest, 10);
    const long minor = *rest == '.' ? strtol(rest + 1, nullptr, 10) : 0;
    return major * 100'000 + minor;
}

bool find_version_problem(const char* extension, VersionProblem& problem) {
    const char* installed = installed_version(extension);
    if (installed == nullptr || generation(installed) == generation(OUTBOX_VERSION))
        return false;
    snprintf(problem.message, sizeof problem.message,
             "extension \"%s\" is of version %s here, but the library of version %s", extension,
             installed, OUTBOX_VERSION);
    if (generation(installed) < generation(OUTBOX_VERSION))
        snprintf(problem.hint, sizeof problem.hint, "Run ALTER EXTENSION %s UPDATE.", extension);
    else
        snprintf(problem.hint, sizeof problem.hint,
                 "Install the library of this version, and restart the server.");
    return true;
}

}  // namespace outbox
