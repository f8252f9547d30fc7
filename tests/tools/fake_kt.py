#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stands for `kt run MODEL_DIR --port N` in quickstart_test: ready at the third look, answers every chat with a stream."""
import http.server
import json
import os
import signal
import sys
import threading

MODE = os.environ.get('FAKE_KT', '')


class Handler(http.server.BaseHTTPRequestHandler):
    looks = 0

    def do_GET(self):
        Handler.looks += 1
        self.send_response(200 if Handler.looks > 2 else 503)
        self.end_headers()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        assert body['stream'] and body['messages'][0]['content']
        self.send_response(200)
        self.end_headers()
        if MODE == 'error':
            self.wfile.write(b'{"error": {"message": "out of order"}}\n')
            return
        for text in ('Paris', ' it', ' is.'):
            self.event(json.dumps({'choices': [{'index': 0, 'delta': {'content': text}}]}))
        self.event('[DONE]')

    def event(self, data):
        self.wfile.write(f'data: {data}\n\n'.encode())

    def log_message(self, *_):
        pass


def main():
    assert sys.argv[1:4] == ['run', 'build/models/smol-moe-mirror', '--port'], sys.argv
    if MODE == 'broken':
        sys.exit('kt run: no memory for a segment')
    server = http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[4])), Handler)

    def stop(*_):
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, stop)
    server.serve_forever()
    with open('drained', 'w', encoding='utf-8') as f:
        f.write('yes')
    sys.exit(3 if MODE == 'dirty' else 0)


main()
