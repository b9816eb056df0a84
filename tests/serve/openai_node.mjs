// OpenAI's npm package as a client.
import assert from "node:assert/strict";
import OpenAI from "openai";

const { SERVE_URL, SERVE_KEY } = process.env;
const SUM = "What is 1234 + 567?";
const client = new OpenAI({ baseURL: `${SERVE_URL}/v1`, apiKey: SERVE_KEY, maxRetries: 0, timeout: 60_000 });
const model = (await client.models.list()).data[0].id;
const messages = (content) => [{ role: "user", content }];

const checks = {
  async "streams a conversation"() {
    let text = "", parts = 0, usage = null;
    const stream = await client.chat.completions.create({
      model, messages: messages(SUM), stream: true, stream_options: { include_usage: true },
    });
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      parts += 1;
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, "1234 + 567 = 1801");
    assert.ok(parts > 5, `it came in ${parts} parts`);
    assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
  },
  async "runs a tool by the package's own helper"() {
    const schema = {
      type: "object", additionalProperties: false, required: ["number"],
      properties: { number: { type: "integer", minimum: 0, maximum: 999 } },
    };
    const runner = client.chat.completions.stream({
      model, messages: messages("Is 221 prime?"), max_tokens: 500, tool_choice: "required", parallel_tool_calls: false,
      tools: [{ type: "function", function: { name: "divide", parameters: schema } }],
    });
    let deltas = 0;
    runner.on("tool_calls.function.arguments.delta", () => { deltas += 1; });
    const message = (await runner.finalChatCompletion()).choices[0].message;
    const [call] = message.tool_calls;
    assert.equal(call.function.name, "divide");
    const { number } = JSON.parse(call.function.arguments);
    assert.ok(Number.isInteger(number) && number >= 0 && number <= 999);
    assert.ok(deltas > 1, `arguments came in ${deltas} parts`);
  },
  async "throws the package's own errors"() {
    const request = (more) => client.chat.completions.create({ model, messages: messages(SUM), ...more });
    await assert.rejects(request({ temperature: -1 }), (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature");
    await assert.rejects(request({ model: "gpt-9" }), OpenAI.NotFoundError);
    await assert.rejects(client.withOptions({ apiKey: "not-the-key" }).models.list(), OpenAI.AuthenticationError);
  },
  async "aborts a stream and is answered at once"() {
    const stream = await client.chat.completions.create({ model, messages: messages("9973是质数吗"), n: 16, stream: true });
    let seen = 0;
    for await (const _ of stream) if ((seen += 1) === 5) break;
    const begun = performance.now();
    const answer = await client.chat.completions.create({ model, messages: messages(SUM) });
    assert.equal(answer.choices[0].message.content, "1234 + 567 = 1801");
    assert.ok(performance.now() - begun < 2000, `the next answer took ${performance.now() - begun} ms`);
  },
};

for (const [name, check] of Object.entries(checks)) {
  const begun = performance.now();
  await check();
  console.log(`ok: ${name} (${((performance.now() - begun) / 1000).toFixed(1)} s)`);
}
