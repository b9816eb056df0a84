#!/usr/bin/env bash
# curl as a client: the routes for machines, and an event stream as text.
set -euo pipefail

check() {
    local name=$1 text=$2 pattern=$3
    if ! grep -qE -e "$pattern" <<<"$text"; then
        echo "not ok: $name: no line matches $pattern in:"
        echo "$text"
        exit 1
    fi
    echo "ok: $name"
}
get() { curl -sS --max-time 20 "$@"; }
with_key=(-H "authorization: Bearer $SERVE_KEY")

check "/health" "$(get "$SERVE_URL/health")" '^\{"status":"ok"\}$'
check "/ready" "$(get "$SERVE_URL/ready")" '"status":"ready"'
check "/metrics is OpenMetrics" "$(get -D - "${with_key[@]}" "$SERVE_URL/metrics" | tr -d '\r')" '^content-type: application/openmetrics-text; version=1\.0\.0'
check "/metrics ends" "$(get "${with_key[@]}" "$SERVE_URL/metrics" | tail -n 1)" '^# EOF$'
check "/metrics counts" "$(get "${with_key[@]}" "$SERVE_URL/metrics")" '^duckpond_http_requests_total\{route="/health",status="200"\} [1-9]'
check "/v1/models" "$(get "${with_key[@]}" "$SERVE_URL/v1/models")" '"object":"list".*"id":"duckling"|"id":"duckling".*"object":"list"'
check "/pond" "$(get "${with_key[@]}" "$SERVE_URL/pond")" '"name":"duck-01"'
check "a key is needed" "$(get -w '\n%{http_code}' "$SERVE_URL/v1/models")" '^401$'
check "HEAD" "$(get -I "$SERVE_URL/health")" '^HTTP/1.1 200 OK'

stream=$(get -N -D - "${with_key[@]}" -H 'content-type: application/json' "$SERVE_URL/v1/chat/completions" \
    -d '{"stream": true, "messages": [{"role": "user", "content": "What is 1234 + 567?"}]}' | tr -d '\r')
check "a stream says so" "$stream" '^content-type: text/event-stream'
check "a stream is not kept by what is in between" "$stream" '^cache-control: .*no-(cache|store)'
check "the last event is the mark" "$(tail -n 2 <<<"$stream" | grep .)" '^data: \[DONE\]$'
body=$(sed '1,/^$/d' <<<"$stream")
if grep -vE '^(data: (\{.*\}|\[DONE\])|: .*|)$' <<<"$body"; then
    echo "not ok: the lines above are no events"
    exit 1
fi
events=$(grep -c '^data: {' <<<"$body")
[ "$events" -gt 5 ] || { echo "not ok: only $events events"; exit 1; }
echo "ok: $events events, one after another"
