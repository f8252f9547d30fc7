#!/usr/bin/python3 -I
# SPDX-License-Identifier: Apache-2.0
"""kt-template MEMORY_LIMIT_BYTES: renders one chat template, as transformers does, for the coordinator.

stdin and stdout carry frames: four bytes of length (little endian), then as many bytes. The first frame in is
{"template": text, "globals": {...}}, every further one the variables of a rendering (JSON). Each is answered by one frame:
"+" and the text ("" for the first), or "-" and why it could not be done. Exit codes: 0 end of input, 3 out of memory.
"""
import codecs
import json
import os
import resource
import struct
import sys
import textwrap  # noqa: F401
import time
from datetime import datetime

import jinja2
import jinja2.constants  # with debug and textwrap: Jinja imports them when it is too late to read a file
import jinja2.debug
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUT_OF_MEMORY = 3


class GenerationTag(Extension):
    """{% generation %}...{% endgeneration %} marks the assistant's text for training; here it is just its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def compile_template(request):
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(
        raise_exception=raise_exception, strftime_now=lambda form: datetime.now().strftime(form), **request["globals"]
    )
    return environment.from_string(request["template"])


def lock_down(memory_limit_bytes):
    # What Jinja and Python would read from files later: escapes in templates, the time zone.
    codecs.lookup("unicode_escape")
    time.localtime()
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, memory_limit_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))  # nothing can be opened or connected
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def read_frame():
    header = sys.stdin.buffer.read(4)
    if len(header) < 4:
        sys.exit(0)
    return json.loads(sys.stdin.buffer.read(*struct.unpack("<I", header)))


def answer(mark, text):
    payload = mark + text.encode("utf-8", "replace")
    sys.stdout.buffer.write(struct.pack("<I", len(payload)) + payload)
    sys.stdout.buffer.flush()


def main():
    lock_down(int(sys.argv[1]))
    template = None
    while True:
        try:
            request = read_frame()
            if template is None:
                template, text = compile_template(request), ""
            else:
                text = template.render({"tools": None, "documents": None, **request})
            answer(b"+", text)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        except jinja2.TemplateSyntaxError as error:
            answer(b"-", f"line {error.lineno}: {error.message}")
        except Exception as error:
            answer(b"-", str(error) if type(error) is jinja2.TemplateError else f"{type(error).__name__}: {error}")


main()
