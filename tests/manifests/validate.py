"""Compares manifests with the schemas of the APIs they are for, and prints their documents as JSON.

    validate.py FILE...     {"errors": ["file: where: what"], "documents": {"file": [...]}}

Kubernetes: the schemas of kubernetes-validate, which refuse unknown keys. Cloud Run: the description of
its API in google-api-python-client. Runs with the packages of tests/requirements.txt.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

KUBERNETES = "1.31"
CLOUD_RUN_KINDS = {"serving.knative.dev/v1": "Service", "run.googleapis.com/v1": "Job"}
RESTRICTED = ("run.googleapis.com/", "autoscaling.knative.dev/")
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,),
    "object": (dict,),
}  # fmt: skip


class CloudRun:
    def __init__(self) -> None:
        path = resources.files("googleapiclient") / "discovery_cache/documents/run.v1.json"
        self.text = path.read_text()
        self.schemas = json.loads(self.text)["schemas"]

    def errors(self, schema: dict[str, Any], value: Any, where: str = "") -> Iterator[str]:
        if "$ref" in schema:
            named = self.schemas[schema["$ref"]]
            yield from self.errors({**named, "description": schema.get("description", "")}, value, where)
            return
        kind = schema["type"]
        # Numbers of 64 bits are texts in JSON.
        if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
            yield f"{where}: {value!r} is not of type {kind}"
        elif "enum" in schema and value not in schema["enum"]:
            yield f"{where}: {value!r} is none of {schema['enum']}"
        elif kind == "array":
            for number, element in enumerate(value):
                yield from self.errors(schema["items"], element, f"{where}[{number}]")
        elif kind == "object":
            yield from self.errors_of_members(schema, value, where)

    def errors_of_members(self, schema: dict[str, Any], value: dict[str, Any], where: str) -> Iterator[str]:
        properties = schema.get("properties", {})
        for key, member in value.items():
            inner = properties.get(key, schema.get("additionalProperties"))
            if inner is None:
                yield f"{where}.{key}: unknown key"
                continue
            if "Not supported by Cloud Run" in inner.get("description", ""):
                yield f"{where}.{key}: not supported by Cloud Run"
            if where.endswith(".annotations") and key.startswith(RESTRICTED) and f"`{key}`" not in self.text:
                yield f"{where}.{key}: no such annotation"
            yield from self.errors(inner, member, f"{where}.{key}")


def errors_of(document: Any, cloud_run: CloudRun) -> Iterator[str]:
    kind = CLOUD_RUN_KINDS.get(document.get("apiVersion"))
    if kind is not None:
        if document["kind"] != kind:
            yield f"kind: {document['kind']!r} is not {kind!r}"
        yield from cloud_run.errors(cloud_run.schemas[kind], document)
        return
    try:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        yield f"{'.'.join(map(str, error.path))}: {error.message}"
    except (kubernetes_validate.SchemaNotFoundError, kubernetes_validate.InvalidSchemaError) as error:
        yield error.message


def main() -> None:
    cloud_run = CloudRun()
    errors, documents = [], {}
    for name in sys.argv[1:]:
        documents[name] = list(yaml.safe_load_all(Path(name).read_text()))
        for document in documents[name]:
            errors += [f"{name}: {error}" for error in errors_of(document, cloud_run)]
    json.dump({"errors": errors, "documents": documents}, sys.stdout)


if __name__ == "__main__":
    main()
