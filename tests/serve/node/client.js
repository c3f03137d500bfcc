// The usual calls of OpenAI's client, against the server at argv[2]; one JSON object of what came back goes to stdout.
import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Which letters come after A, B and C?" }];
const asked = { model, messages, temperature: 0, max_completion_tokens: 12 };
const city = { type: "object", properties: { city: { type: "string", maxLength: 12 } }, required: ["city"] };
const schema = { ...city, additionalProperties: false };

async function chat() {
  const { choices, usage } = await client.chat.completions.create(asked);
  return { text: choices[0].message.content, reason: choices[0].finish_reason, usage };
}

async function stream() {
  const chunks = await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } });
  let text = "";
  let usage = null;
  for await (const chunk of chunks) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  return { text, usage };
}

async function tools() {
  const tool = { type: "function", function: { name: "weather", description: "Weather of a city", parameters: schema } };
  const limits = { max_completion_tokens: 60, parallel_tool_calls: false };
  const given = { ...asked, ...limits, tools: [tool], tool_choice: "required" };
  const { choices } = await client.chat.completions.create(given);
  const streamed = await client.chat.completions.stream(given).finalChatCompletion();
  const [whole, grown] = [choices[0], streamed.choices[0]].map(({ message, finish_reason }) => ({
    reason: finish_reason,
    calls: message.tool_calls.map(({ function: { name, arguments: text } }) => ({ name, arguments: JSON.parse(text) })),
  }));
  return { whole, grown };
}

async function jsonSchema() {
  const response_format = { type: "json_schema", json_schema: { name: "place", schema, strict: true } };
  const { choices } = await client.chat.completions.create({ ...asked, max_completion_tokens: 40, response_format });
  return JSON.parse(choices[0].message.content);
}

async function responses() {
  const given = { model, input: messages[0].content, temperature: 0, max_output_tokens: 12 };
  const whole = await client.responses.create(given);
  let text = "";
  const kinds = [];
  for await (const event of await client.responses.create({ ...given, stream: true })) {
    kinds.push(event.type);
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  return { text: whole.output_text, streamed: text, last: kinds.at(-1) };
}

async function errors() {
  try {
    await client.chat.completions.create({ ...asked, temperature: -1 });
  } catch (error) {
    return { bad: error instanceof OpenAI.BadRequestError, status: error.status, param: error.param };
  }
}

async function models() {
  const found = [];
  for await (const each of client.models.list()) found.push(each.id);
  return found;
}

const calls = { models, chat, stream, tools, jsonSchema, responses, errors };
const results = {};
for (const [name, call] of Object.entries(calls)) results[name] = await call();
console.log(JSON.stringify(results));
