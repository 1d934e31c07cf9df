"""Renders chat templates as Python's transformers does: JSON jobs on stdin, JSON results on stdout."""

import json
import sys
from datetime import datetime, timezone

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """`{% generation %}` marks what the model is trained on; rendering shows it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def raise_exception(message):
    raise TemplateError(message)


def strftime_now(form):
    return datetime.now(timezone.utc).strftime(form)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


environment = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
)
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception
environment.globals["strftime_now"] = strftime_now


def render(job):
    try:
        return {"text": environment.from_string(job["template"]).render(**job["context"])}
    except Exception as error:  # whatever goes wrong is the result
        return {"error": f"{type(error).__name__}: {error}"}


json.dump([render(job) for job in json.load(sys.stdin)], sys.stdout)
