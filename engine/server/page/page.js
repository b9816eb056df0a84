// The page: a chat over the server's own API, and the pond. No library, no build step; text is only ever set as text.
import { WORDS } from "./words.js";

const $ = (id) => document.getElementById(id);
const POLL_MS = 2000;
const MOST_POINTS = 2000;

let language = localStorage.getItem("language") ?? (navigator.language.startsWith("zh") ? "zh" : "en");
let words = WORDS[language] ?? WORDS.en;
let conversation = [];
let running = null;
let points = [];
let pond = null;

// ---- words ----

function speak() {
  words = WORDS[language] ?? WORDS.en;
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
  for (const node of document.querySelectorAll("[data-word]")) node.textContent = words[node.dataset.word];
  $("language").textContent = words.other;
  $("text").placeholder = words.ask;
  for (const node of document.querySelectorAll("details.done summary")) node.textContent = words.reasoning;
  showPond();
  draw();
}

$("language").onclick = () => {
  language = language === "zh" ? "en" : "zh";
  localStorage.setItem("language", language);
  speak();
};

// ---- the server ----

class Refused extends Error {}

async function call(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem("key");
    const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused(words.unreachable);
    }
    if (response.ok) return response;
    if (response.status === 401) {
      await askForKey(key);
      continue;
    }
    const body = await response.json().catch(() => null);
    throw new Refused(body?.error?.message ?? `HTTP ${response.status}`);
  }
}

let asking = null;

/// Asks once, however many requests were refused; `refused` is the key that was not good.
function askForKey(refused) {
  if (sessionStorage.getItem("key") !== refused) return Promise.resolve();
  asking ??= new Promise((resolve) => {
    const dialog = $("key");
    dialog.addEventListener("close", () => {
      sessionStorage.setItem("key", $("key-text").value.trim());
      $("key-text").value = "";
      asking = null;
      resolve();
    }, { once: true });
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.showModal();
  });
  return asking;
}

/// The events of a stream, as JSON.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

// ---- chat ----

function bubble(kind) {
  const node = document.createElement("div");
  node.className = `message ${kind}`;
  const body = document.createElement("div");
  body.className = "body";
  node.append(body);
  $("messages").append(node);
  return { node, body };
}

function follow() {
  const page = document.scrollingElement;
  if (page.scrollHeight - page.scrollTop - page.clientHeight < 200) page.scrollTop = page.scrollHeight;
}

/// Reasoning, folded away once the answer begins.
function reasoningIn(node) {
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  const text = document.createElement("pre");
  summary.textContent = words.thinking;
  details.append(summary, text);
  node.prepend(details);
  return {
    add: (more) => text.append(more),
    done: () => {
      details.classList.add("done");
      summary.textContent = words.reasoning;
    },
  };
}

async function ask(question) {
  conversation.push({ role: "user", content: question });
  bubble("user").body.textContent = question;
  const { node, body } = bubble("assistant");
  const abort = new AbortController();
  running = abort;
  busy(true);
  points = [];
  $("figures").textContent = words.waiting;
  let content = "", reasoning = null, finish = null, first = null, last = null, tokens = 0, usage = null, timings = null;
  const request = {
    messages: conversation,
    stream: true,
    stream_options: { include_usage: true, timings: true },
    thinking: { type: $("think").checked ? "enabled" : "disabled" },
  };
  const temperature = $("temperature").valueAsNumber;
  if (!Number.isNaN(temperature)) request.temperature = temperature;
  try {
    const response = await call("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(request),
      signal: abort.signal,
    });
    for await (const event of events(response)) {
      if (event.error) throw new Refused(event.error.message);
      if (event.prefill) $("figures").textContent = words.reading(event.prefill.done, event.prefill.total);
      if (event.token) {
        if (last !== null) point(event.token.ms - last, event.token);
        last = event.token.ms;
        first ??= last;
        tokens += 1;
        const rate = last > first ? ((1000 * (tokens - 1)) / (last - first)).toFixed(1) : "–";
        $("figures").textContent = words.writing(tokens, rate);
      }
      const choice = event.choices?.[0];
      if (choice?.delta?.reasoning_content) {
        reasoning ??= reasoningIn(node);
        reasoning.add(choice.delta.reasoning_content);
      }
      if (choice?.delta?.content) {
        reasoning?.done();
        content += choice.delta.content;
        body.append(choice.delta.content);
      }
      finish = choice?.finish_reason ?? finish;
      usage = event.usage ?? usage;
      timings = event.timings ?? timings;
      follow();
    }
    $("figures").textContent = usage ? figures(usage, timings) : "";
    if (finish === "length") $("figures").textContent += ` · ${words.length}`;
  } catch (error) {
    if (error.name === "AbortError") {
      $("figures").textContent = words.stopped;
    } else {
      node.classList.add("failed");
      body.append(`${content ? "\n" : ""}${words.failed(error.message)}`);
      $("figures").textContent = "";
    }
  } finally {
    reasoning?.done();
    running = null;
    busy(false);
    draw();
  }
  // A question without any answer is not part of the conversation.
  if (content) conversation.push({ role: "assistant", content });
  else conversation.pop();
}

function figures(usage, timings) {
  const details = usage.completion_tokens_details;
  const accepted = details.accepted_prediction_tokens;
  const drafts = accepted + details.rejected_prediction_tokens;
  const rest = (timings.time_ms - timings.ttft_ms) / 1000;
  return words.figures({
    prompt: usage.prompt_tokens,
    cached: usage.prompt_tokens_details.cached_tokens,
    output: usage.completion_tokens,
    reasoning: details.reasoning_tokens,
    first: (timings.ttft_ms / 1000).toFixed(2),
    rate: rest > 0 ? ((usage.completion_tokens - 1) / rest).toFixed(1) : "–",
    drafts,
    accepted,
    share: drafts ? ((100 * accepted) / drafts).toFixed(1) : "0",
  });
}

function busy(yes) {
  $("send").hidden = yes;
  $("stop").hidden = !yes;
  $("fresh").disabled = yes;
}

$("ask").onsubmit = (event) => {
  event.preventDefault();
  const question = $("text").value.trim();
  if (!question || running) return;
  $("text").value = "";
  ask(question);
};
$("text").onkeydown = (event) => {
  // Not while an input method is composing.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
};
$("stop").onclick = () => running?.abort();
$("fresh").onclick = () => {
  conversation = [];
  points = [];
  $("messages").replaceChildren();
  $("figures").textContent = "";
  draw();
  $("text").focus();
};

// ---- the plot ----

let drawing = false;

function point(ms, token) {
  points.push({ ms, drafted: token.drafted, accepted: token.accepted });
  if (points.length > MOST_POINTS) points.shift();
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    draw();
  });
}

function draw() {
  $("latency").hidden = points.length === 0;
  if (!points.length) return;
  const canvas = $("plot");
  const scale = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const style = getComputedStyle(document.body);
  const colour = (name) => {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  const [accent, faint, warn] = ["--accent", "--faint", "--warn"].map(colour);
  const sorted = points.map((p) => p.ms).sort((a, b) => a - b);
  const median = sorted[Math.floor(sorted.length / 2)];
  // One slow token must not flatten all others.
  const top = Math.max(Math.min(sorted.at(-1), 4 * sorted[Math.floor(sorted.length * 0.95)]), 0.1);
  const x = (i) => 6 + ((width - 60) * (i + 0.5)) / points.length;
  const y = (ms) => height - 6 - (height - 14) * Math.min(ms / top, 1);
  pen.strokeStyle = faint;
  pen.globalAlpha = 0.5;
  pen.beginPath();
  pen.moveTo(0, y(median));
  pen.lineTo(width - 50, y(median));
  pen.stroke();
  pen.globalAlpha = 1;
  pen.fillStyle = faint;
  pen.font = `11px ${style.fontFamily}`;
  pen.fillText(`${median.toFixed(1)} ms`, width - 48, Math.min(Math.max(y(median) + 4, 11), height - 4));
  const size = points.length > 400 ? 1.2 : 2.2;
  points.forEach((p, i) => {
    const [px, py] = [x(i), y(p.ms)];
    pen.beginPath();
    if (p.drafted && !p.accepted) {
      pen.strokeStyle = warn;
      pen.moveTo(px - size, py - size);
      pen.lineTo(px + size, py + size);
      pen.moveTo(px + size, py - size);
      pen.lineTo(px - size, py + size);
      pen.stroke();
      return;
    }
    pen.arc(px, py, size, 0, 7);
    pen.fillStyle = pen.strokeStyle = p.accepted ? accent : faint;
    if (p.accepted) pen.fill();
    else pen.stroke();
  });
  canvas.setAttribute("aria-label", words.plotLabel(points.length, median.toFixed(1)));
}

addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

// ---- the pond ----

function table(node, columns, rows, none) {
  if (!rows.length) {
    const text = document.createElement("caption");
    text.textContent = none;
    return node.replaceChildren(text);
  }
  const row = (tag, cells) => {
    const tr = document.createElement("tr");
    for (const [text, kind] of cells) {
      const cell = document.createElement(tag);
      cell.textContent = text;
      cell.className = kind;
      tr.append(cell);
    }
    return tr;
  };
  const isNumber = (column) => rows.some((r) => typeof r[column] === "number");
  const head = row("th", columns.map((c) => [words.heads[c], isNumber(c) ? "number" : ""]));
  const body = rows.map((r) =>
    row("td", columns.map((c) => {
      const value = r[c];
      if (c === "state") {
        const text = [words.states[value] ?? value, r.note, r.hot ? words.throttled : ""].filter(Boolean).join(" · ");
        return [text, (value === "up" || value === "ready") && !r.hot ? "up" : "bad"];
      }
      if (typeof value === "number") return [value.toLocaleString(language, { maximumFractionDigits: 1 }), "number"];
      return [value ?? "–", isNumber(c) ? "number" : ""];
    })));
  node.replaceChildren(head, ...body);
}

function showPond() {
  if (!pond) return;
  const { model, load } = pond;
  const stats = pond.pond;
  $("model").textContent = words.model(model) + (stats.take_overs ? ` · ${words.takeOvers(stats.take_overs)}` : "");
  const ports = ["name", "state", "speed_mbit", "retries", "losses"];
  const ducks = ["name", "port", "state", "units", "active", "resident", "blocks", "step_us", "steps", "retries", "losses", "temperature"];
  table($("ports"), ports, stats.ports, words.noPorts);
  const remote = ["port", "resident", "blocks", "retries", "losses", "temperature"];
  table($("ducks"), ducks.filter((c) => !remote.includes(c) || stats.ports.length), stats.ducks, words.noDucks);
  $("state").textContent = load.broken ? words.broken
    : load.stopping ? words.stopping
    : !load.ready ? words.loading(load.percent)
    : load.running ? words.busy(load.waiting)
    : words.ready(load.waiting);
}

async function watch() {
  try {
    const now = await (await call("pond")).json();
    // Their counts of throttling only grow: hot is who has counted since the last look.
    const before = new Map(pond?.pond.ducks.map((duck) => [duck.name, duck.throttled]));
    for (const duck of now.pond.ducks) duck.hot = duck.throttled > (before.get(duck.name) ?? duck.throttled);
    pond = now;
    showPond();
  } catch {
    $("state").textContent = words.unreachable;
  }
  setTimeout(watch, document.hidden ? 5 * POLL_MS : POLL_MS);
}

for (const name of ["chat", "pond"]) {
  $(`tab-${name}`).onclick = () => {
    for (const other of ["chat", "pond"]) {
      $(other).hidden = other !== name;
      $(`tab-${other}`).setAttribute("aria-selected", String(other === name));
    }
    draw();
  };
}

speak();
watch();
$("text").focus();
