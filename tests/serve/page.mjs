// The page in a real browser: a conversation, an answer stopped in the middle, a duck that dies while it is watched, a key that is asked
// for, and no serious fault of accessibility, light and dark, in both languages.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import path from "node:path";
import { createSocket } from "node:dgram";
import { createInterface } from "node:readline";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const { SERVE_PROGRAMS, SERVE_SCRATCH, SERVE_ARTIFACTS, SERVE_URL, SERVE_KEY } = process.env;
const AXE = fs.readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const SUM = "What is 1234 + 567?";
const LONG = "9973是质数吗";
const PATIENCE = 30_000;

// ---- programs ----

const started = [];
process.on("exit", () => started.forEach((child) => child.kill("SIGKILL")));
process.on("SIGTERM", () => process.exit(1));

function start(program, ...flags) {
  const child = spawn(path.join(SERVE_PROGRAMS, program), flags, { stdio: ["ignore", "ignore", "pipe"] });
  started.push(child);
  return child;
}

async function stop(child) {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, "exit");
  child.kill("SIGTERM");
  await ended;
}

async function run(program, ...flags) {
  const child = spawn(path.join(SERVE_PROGRAMS, program), flags, { stdio: ["ignore", "pipe", "inherit"] });
  let output = "";
  child.stdout.on("data", (more) => { output += more; });
  const [code] = await once(child, "close");
  assert.equal(code, 0, `${program} ${flags.join(" ")}`);
  return output;
}

/// A server that is ready, with its address.
async function serve(...flags) {
  const child = start("duckpond", "serve", "--port", "0", ...flags);
  const lines = createInterface({ input: child.stderr });
  const log = [];
  const url = await new Promise((resolve, reject) => {
    let found;
    lines.on("line", (line) => {
      log.push(line);
      found ??= line.match(/^listening on (\S+)/)?.[1];
      if (line.startsWith("ready: ")) resolve(found);
    });
    child.on("exit", () => reject(new Error(`the server ended:\n${log.join("\n")}`)));
  });
  return { child, url, log };
}

async function freeUdpPorts(count) {
  const sockets = await Promise.all(Array.from({ length: count }, async () => {
    const socket = createSocket("udp4").bind(0, "127.0.0.1");
    await once(socket, "listening");
    return socket;
  }));
  return sockets.map((socket) => {
    const { port } = socket.address();
    socket.close();
    return port;
  });
}

/// Three ducks as processes over UDP, and the description of their pond.
async function pond() {
  const folder = fs.mkdtempSync(path.join(SERVE_SCRATCH, "pond-"));
  const key = path.join(folder, "pond.key");
  const publicKey = (await run("duckpond", "key", "new", key)).match(/[0-9a-f]{64}/)[0];
  const [host, ...ports] = await freeUdpPorts(4);
  const peers = ports.map((port) => `127.0.0.1:${port}`);
  const rows = ports.map((_, i) => `[[ducks]]\nname = "duck-${i + 1}"\nport = "loopback"\n`);
  const file = path.join(folder, "pond.toml");
  fs.writeFileSync(file, [
    `name = "watched"\nkey = "pond.key"\n`,
    `[[ports]]\nname = "loopback"\nlink = "udp:127.0.0.1:${host},${peers.join(",")}"\n`,
    ...rows,
  ].join("\n"));
  const ducks = ports.map((port, i) => {
    const flags = ["--id", `duck-${i + 1}`, "--link", `udp:127.0.0.1:${port}`, "--key", publicKey, "--memory", "64MiB"];
    const child = start("duckd", ...flags);
    child.stderr.resume();
    return { child, flags };
  });
  return { file, ducks };
}

// ---- the page ----

const browser = await chromium.launch({
  executablePath: process.env.SERVE_CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
});

async function open(url, settings = {}) {
  const context = await browser.newContext({ locale: "en-GB", viewport: { width: 1000, height: 800 }, ...settings });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.faults = [];
  page.on("pageerror", (error) => page.faults.push(`${error}`));
  // A refused key is in the console, too.
  page.on("console", (message) => {
    if (message.type() === "error" && !message.text().includes("401")) page.faults.push(message.text());
  });
  page.on("request", (request) => {
    const { protocol, origin } = new URL(request.url());
    if (protocol.startsWith("http") && origin !== new URL(url).origin) page.faults.push(`it loads ${request.url()}`);
  });
  await page.goto(url);
  await page.locator("#send").waitFor();
  return page;
}

async function close(page) {
  assert.deepEqual(page.faults, []);
  await page.context().close();
}

async function picture(page, name) {
  if (SERVE_ARTIFACTS) await page.screenshot({ path: path.join(SERVE_ARTIFACTS, `${name}.png`), fullPage: true });
}

async function ask(page, text) {
  await page.fill("#text", text);
  await page.press("#text", "Enter");
}

const idle = (page) => page.locator("#stop").waitFor({ state: "hidden" });
const lastAnswer = (page) => page.locator(".message.assistant .body").last();

async function until(what, holds, patience = PATIENCE) {
  const end = performance.now() + patience;
  for (;;) {
    const found = await holds();
    if (found) return found;
    if (performance.now() > end) throw new Error(`after ${patience} ms still not: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/// Whether axe finds something serious on what is shown.
async function accessible(page, where) {
  // The page's policy forbids scripts of others; the browser's own way in is not held to it.
  await page.evaluate(AXE);
  const { violations, passes } = await page.evaluate(() => globalThis.axe.run());
  assert.ok(passes.length > 10, `axe looked at ${passes.length} rules only`);
  const bad = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  const lines = bad.map((v) => `${where}: ${v.impact} ${v.id}: ${v.nodes.map((n) => `${n.html} ${n.any[0]?.message ?? ""}`).join("; ")}`);
  assert.equal(lines.length, 0, lines.join("\n"));
}

const checks = {
  async "a conversation, and an answer stopped in the middle"() {
    const { child, url } = await serve();
    const page = await open(url);
    await ask(page, SUM);
    await idle(page);
    assert.equal(await lastAnswer(page).textContent(), "1234 + 567 = 1801");
    const figures = await page.locator("#figures").textContent();
    assert.match(figures, /^\d+ prompt tokens .*, \d+ tokens; first after /);
    assert.ok(await page.locator("#latency").isVisible(), "there is no plot");
    // What was said before is part of the next question.
    await ask(page, "Is 221 prime?");
    await idle(page);
    const second = await page.locator("#figures").textContent();
    assert.ok(parseInt(second) > parseInt(figures) + 10, `${figures} then ${second}`);
    await picture(page, "conversation");

    await page.click("#fresh");
    assert.equal(await page.locator(".message").count(), 0);
    await page.check("#think");
    await ask(page, LONG);
    await page.locator("details pre").waitFor({ state: "attached" });
    await until("some of it is there", async () => (await page.locator("details pre").textContent()).length > 40);
    await picture(page, "reasoning");
    await page.click("#stop");
    await idle(page);
    assert.equal(await page.locator("#figures").textContent(), "stopped");
    const length = (await page.locator(".message.assistant").textContent()).length;
    await until("the server has stopped, too", async () => {
      const { load } = await (await fetch(`${url}/pond`)).json();
      return load.running === 0;
    }, 2000);
    assert.equal((await page.locator(".message.assistant").textContent()).length, length);
    await page.uncheck("#think");
    await page.click("#fresh");
    await ask(page, SUM);
    await idle(page);
    assert.equal(await lastAnswer(page).textContent(), "1234 + 567 = 1801");
    // A server that is gone is told, not waited for.
    await stop(child);
    await ask(page, SUM);
    await idle(page);
    assert.match(await lastAnswer(page).textContent(), /^No answer: the server cannot be reached/);
    page.faults = page.faults.filter((fault) => !/ERR_CONNECTION_REFUSED|Failed to load resource/.test(fault));
    await close(page);
  },

  async "a key is asked for once and kept"() {
    const page = await open(SERVE_URL);
    await page.locator("#key[open]").waitFor();
    await page.fill("#key-text", SERVE_KEY);
    await page.press("#key-text", "Enter");
    await until("the state is known", async () => (await page.locator("#state").textContent()) === "ready");
    await ask(page, SUM);
    await idle(page);
    assert.equal(await lastAnswer(page).textContent(), "1234 + 567 = 1801");
    assert.equal(await page.locator("#key[open]").count(), 0);
    await close(page);
  },

  async "a duck dies while the pond is watched, and the answer goes on"() {
    const { file, ducks } = await pond();
    const { child, url } = await serve("--pond", file);
    const page = await open(url);
    const state = (name) => page.locator("#ducks tr", { hasText: name }).locator("td").nth(2);
    await page.click("#tab-pond");
    await page.locator("#ports tr td").first().waitFor();
    for (const name of ["duck-1", "duck-2", "duck-3"]) {
      await until(`${name} is ready`, async () => (await state(name).textContent()) === "ready");
    }
    await picture(page, "pond");
    await page.click("#tab-chat");
    await ask(page, SUM);
    await idle(page);
    assert.equal(await lastAnswer(page).textContent(), "1234 + 567 = 1801");
    await page.click("#fresh");

    // Without a duck in between.
    const alone = await (await fetch(`${SERVE_URL}/v1/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${SERVE_KEY}` },
      body: JSON.stringify({ messages: [{ role: "user", content: LONG }], thinking: { type: "enabled" } }),
    })).json();
    await page.check("#think");
    await ask(page, LONG);
    await until("it reasons", async () => (await page.locator("details pre").count()) > 0);
    await page.click("#tab-pond");
    ducks[1].child.kill("SIGKILL");
    await until("the page shows it", async () => !["ready", ""].includes(await state("duck-2").textContent()));
    await picture(page, "pond-without-a-duck");
    assert.ok(await state("duck-2").evaluate((cell) => cell.classList.contains("bad")));
    await page.click("#tab-chat");
    await idle(page);
    const { content, reasoning_content: reasoning } = alone.choices[0].message;
    assert.equal(await lastAnswer(page).textContent(), content);
    assert.equal(await page.locator("details pre").textContent(), reasoning);
    // For the check of the dashboard: only a pond with ports has their figures.
    fs.writeFileSync(path.join(SERVE_SCRATCH, "pond.metrics"), await (await fetch(`${url}/metrics`)).text());

    const again = start("duckd", ...ducks[1].flags);
    again.stderr.resume();
    await page.click("#tab-pond");
    await until("it is back", async () => (await state("duck-2").textContent()) === "ready");
    await picture(page, "pond-again");
    await accessible(page, "a pond of three");
    await close(page);
    await stop(child);
    await Promise.all([again, ...ducks.map((duck) => duck.child)].map(stop));
  },

  async "axe finds nothing serious, light and dark, in English and Chinese"() {
    const { child, url } = await serve();
    for (const colorScheme of ["light", "dark"]) {
      for (const locale of ["en-GB", "zh-CN"]) {
        const page = await open(url, { colorScheme, locale });
        const where = `${colorScheme} ${locale}`;
        const chinese = locale === "zh-CN";
        assert.equal(await page.locator("#send").textContent(), chinese ? "发送" : "Send");
        assert.equal(await page.locator("html").getAttribute("lang"), chinese ? "zh-Hans" : "en");
        await accessible(page, `${where}, empty`);
        await page.check("#think");
        await ask(page, SUM);
        await idle(page);
        await accessible(page, `${where}, chat`);
        await picture(page, `chat-${colorScheme}-${locale}`);
        await page.click("#tab-pond");
        await page.locator("#ducks tr td").first().waitFor();
        await accessible(page, `${where}, pond`);
        await picture(page, `pond-${colorScheme}-${locale}`);
        await page.evaluate(() => document.getElementById("key").showModal());
        await accessible(page, `${where}, key`);
        await close(page);
      }
    }
    // A telephone: nothing sticks out at the side.
    const page = await open(url, { viewport: { width: 360, height: 640 }, hasTouch: true, isMobile: true });
    await ask(page, SUM);
    await idle(page);
    const [wide, there] = await page.evaluate(() => [document.scrollingElement.scrollWidth, innerWidth]);
    assert.ok(wide <= there, `${wide} of ${there} pixels`);
    await accessible(page, "telephone");
    await picture(page, "telephone");
    await close(page);
    await stop(child);
  },
};

for (const [name, check] of Object.entries(checks)) {
  const begun = performance.now();
  await check();
  console.log(`ok: ${name} (${((performance.now() - begun) / 1000).toFixed(1)} s)`);
}
await browser.close();
process.exit(0);
