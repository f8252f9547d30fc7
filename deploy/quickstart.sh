#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# quickstart.sh [--once] [--port N]: installs, builds, makes the demo model, serves it, asks it one question and goes on
# serving until Ctrl-C. --once ends after the answer. Safe to repeat: what is done already is not done again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage="usage: deploy/quickstart.sh [--once] [--port N]"
once=false
port=30000
while [[ $# -gt 0 ]]; do
  case $1 in
    --once) once=true ;;
    --port)
      [[ ${2:-} =~ ^[1-9][0-9]{0,4}$ && ${2:-} -le 65535 ]] ||
        die "--port must be a number from 1 to 65535, got '${2:-}'"
      port=$2
      shift
      ;;
    -h | --help) echo "$usage" && exit 0 ;;
    *) die "unknown option '$1'; $usage" ;;
  esac
  shift
done

model=build/models/smol-moe-mirror
kt=build/release/bin/kt
log=build/quickstart.log
url=http://127.0.0.1:$port
server=

# Ends the server, which drains, and fails if it does not end cleanly.
stop_server() {
  [[ -n $server ]] || return 0
  local pid=$server rc=0
  server=
  kill -TERM "$pid" 2>/dev/null || true
  wait "$pid" || rc=$?
  [[ $rc == 0 ]] || die "the server ended with exit code $rc; its log is $log"
}

start_server() {
  if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    die "port $port is in use; choose another with --port N"
  fi
  # A session of its own: Ctrl-C reaches this script alone, which passes it on once.
  setsid "$kt" run "$model" --port "$port" >"$log" 2>&1 &
  server=$!
  printf 'starting on %s ' "$url"
  local tenths
  for ((tenths = 0; tenths < 1200; ++tenths)); do
    if ! kill -0 "$server" 2>/dev/null; then
      server=
      printf '\n' && tail -n 20 "$log" >&2
      die "the server did not start; the lines above are the end of $log"
    fi
    if curl --silent --fail --max-time 2 --output /dev/null "$url/health"; then
      printf ' ready\n'
      return
    fi
    ((tenths % 5 != 0)) || printf '.'
    sleep 0.1
  done
  die "the server was not ready after two minutes; its log is $log"
}

# Prints the text of a stream of server-sent events as it comes.
show_stream='
import json, sys
shown = False
for line in sys.stdin:
    data = line.removeprefix("data:").strip()
    if not data or data == "[DONE]":
        continue
    try:
        event = json.loads(data)
        text = "".join(c["delta"].get("content") or "" for c in event["choices"])
    except (ValueError, LookupError, TypeError, AttributeError):
        sys.exit("unexpected answer: " + data)
    print(text, end="", flush=True)
    shown = shown or bool(text)
print()
sys.exit(not shown)
'

ask() {
  local question=$1 body
  body=$(printf '{"model": "default", "stream": true, "max_tokens": 64, "temperature": 0,
    "messages": [{"role": "user", "content": "%s"}]}' "$question")
  printf 'question: %s\nanswer:   ' "$question"
  curl --silent --show-error --no-buffer --max-time 120 "$url/v1/chat/completions" \
    --header 'Content-Type: application/json' --data "$body" | "$python" -u -c "$show_stream" ||
    die "no answer came; the log is $log"
}

print_next() {
  cat <<END

== What to try next

curl $url/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{"model": "default", "messages": [{"role": "user", "content": "Tell me about the sea."}]}'

$kt chat --port $port

python3 -m venv /tmp/openai && /tmp/openai/bin/pip install openai && /tmp/openai/bin/python - <<'PY'
from openai import OpenAI
client = OpenAI(base_url="$url/v1", api_key="none")
answer = client.chat.completions.create(model="default", messages=[{"role": "user", "content": "Who are you?"}])
print(answer.choices[0].message.content)
PY
END
}

run "installing packages" deploy/install_packages.sh
python=$(find_python)

say "Building build/release (the first time takes minutes)"
run "configuring" cmake --preset release
run "building" cmake --build build/release --parallel "$(build_jobs)" --target product

say "Preparing the demo model"
run "preparing the demo model" "$python" tools/make_demo_model.py mirror

say "Serving $model"
trap stop_server EXIT
trap 'trap - INT TERM; exit 130' INT TERM
start_server
ask "What is the capital of Japan?"
if $once; then
  stop_server
  exit 0
fi

# From here on an interrupt is the ordinary end.
trap 'trap - INT TERM; echo; echo "stopping: running requests finish first"; stop_server; exit 0' INT TERM
print_next
say "Serving $url/v1 until Ctrl-C; the log is $log"
rc=0
wait "$server" || rc=$?
server=
die "the server ended with exit code $rc; its log is $log"
