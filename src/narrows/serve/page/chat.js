// A conversation: its messages as the API wants them, and as elements of the log.

import { events, request } from "./api.js";
import { bytes, number, percent } from "./figures.js";
import { render } from "./markdown.js";

const DRAW_EVERY = 100; // milliseconds; the engine works on the same processors

function make(tag, className, text = "") {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  return element;
}

// One message in the log, with the text and its guessed ranges as they grow.
class Entry {
  #timer = null;

  constructor(log, author, role) {
    Object.assign(this, { log, text: "", drafted: [] });
    this.element = make("article", role);
    this.body = make("div", "body");
    this.cost = make("span", "note");
    this.copy = make("button", "quiet", "Copy");
    this.copy.type = "button";
    this.copy.setAttribute("aria-label", `Copy message of ${author}`);
    this.copy.addEventListener("click", () => this.#copy());
    const footer = make("footer", "");
    footer.append(this.copy, this.cost);
    this.element.append(make("h2", "author", author), this.body, footer);
    log.append(this.element);
  }

  push(text, drafted) {
    const start = this.text.length;
    this.text += text;
    const last = this.drafted.at(-1);
    if (drafted && last?.[1] === start) last[1] = this.text.length;
    else if (drafted) this.drafted.push([start, this.text.length]);
    this.#timer ??= setTimeout(() => this.draw(), DRAW_EVERY);
  }

  draw() {
    clearTimeout(this.#timer);
    this.#timer = null;
    const atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 60;
    this.body.replaceChildren(render(this.text, this.drafted));
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  async #copy() {
    try {
      await navigator.clipboard.writeText(this.text);
      this.copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(this.body); // no clipboard without TLS
      this.copy.textContent = "Selected: press Ctrl+C";
    }
    setTimeout(() => (this.copy.textContent = "Copy"), 2000);
  }
}

export class Chat {
  #messages = [];
  #answering = null;

  constructor(log) {
    this.log = log;
  }

  get answering() {
    return this.#answering !== null;
  }

  stop() {
    this.#answering?.abort();
  }

  clear() {
    this.stop();
    this.#messages = [];
    this.log.replaceChildren();
  }

  // Asks, and shows the answer as it comes; resolves to its text. Throws what `request` throws, the question then
  // being taken back, unless a part of the answer is there.
  async ask(question, { model, system, temperature, maxTokens, bandwidth }) {
    const messages = this.#messages;
    const asked = new Entry(this.log, "You", "user");
    asked.push(question, false);
    asked.draw();
    const answer = new Entry(this.log, model, "assistant");
    answer.element.setAttribute("aria-busy", "true");
    this.log.scrollTop = this.log.scrollHeight;
    messages.push({ role: "user", content: question });
    const body = { model, messages: system ? [{ role: "system", content: system }, ...messages] : messages };
    Object.assign(body, { stream: true, stream_options: { include_usage: true, include_drafted: true } });
    if (temperature !== null) body.temperature = temperature;
    if (maxTokens !== null) body.max_tokens = maxTokens;
    const { signal } = (this.#answering = new AbortController());
    try {
      for await (const chunk of events(await request("/v1/chat/completions", { body, signal }))) {
        for (const choice of chunk.choices) {
          if (choice.delta.content) answer.push(choice.delta.content, choice.drafted);
        }
        if (chunk.ledger) answer.cost.textContent = cost(chunk.ledger, bandwidth());
      }
    } catch (error) {
      if (signal.aborted) answer.cost.textContent = "stopped";
      else if (!answer.text) {
        messages.pop();
        asked.element.remove();
        answer.element.remove();
        throw error;
      } else {
        answer.cost.textContent = `cut off: ${error.message}`;
      }
    } finally {
      this.#answering = null;
      answer.element.removeAttribute("aria-busy");
      answer.draw();
    }
    messages.push({ role: "assistant", content: answer.text });
    return answer.text;
  }
}

// What an answer cost, from its ledger; `bandwidth` in GB/s or null.
function cost(ledger, bandwidth) {
  const parts = [`${ledger.output_tokens} tokens`];
  if (ledger.ttft_seconds !== null) parts.push(`first after ${number(ledger.ttft_seconds * 1000)} ms`);
  const [speed, weights, kv] = [ledger.tokens_per_second, ledger.weight_bytes_per_token, ledger.kv_bytes_per_token];
  if (speed !== null && weights !== null) {
    const read = weights + kv + (ledger.speculation?.draft_bytes_per_token ?? 0);
    parts.push(`${number(speed)} tokens/s`, `${bytes(read)} per token`);
    if (bandwidth) parts.push(`${percent((speed * read) / (bandwidth * 1e9))} of the bound`);
  }
  const drafts = ledger.speculation;
  if (drafts) parts.push(`${drafts.accepted_tokens} of ${drafts.drafted_tokens} guesses kept`);
  return parts.join(" · ");
}
