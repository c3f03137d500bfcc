// The live figures: differences of the engine's totals, against the bandwidth that was measured.

import { ApiError, events, request } from "./api.js";

const WINDOW_SECONDS = 1; // of the engine's work
const MAX_PAUSE = 10000; // milliseconds between attempts to reach the server

const element = (id) => document.getElementById(id);
const show = (id, text) => (element(id).textContent = text);

export function bytes(value) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= size) return `${number(value / size)} ${unit}`;
  }
  return `${Math.round(value)} B`;
}

export function number(value) {
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : value < 1000 ? 1 : 0 });
}

export const percent = (share) => `${Math.round(share * 100)}%`;

export class Figures {
  #samples = new Map(); // of each model: its totals over the last second of work, and a little more
  #models = new Map(); // its latest figures
  #listening = null;

  // `chosen` gives the id of the model to show, `onModels` is told the ids, `onKey` that a key is asked for.
  constructor(chosen, onModels, onKey) {
    Object.assign(this, { chosen, onModels, onKey });
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#listening?.abort() : this.listen()));
  }

  bandwidth(id) {
    return this.#models.get(id)?.bandwidth_gigabytes ?? null;
  }

  // Follows the server until the page is hidden or a key is needed; tries again when it is out of reach.
  async listen() {
    this.#listening?.abort();
    const { signal } = (this.#listening = new AbortController());
    for (let pause = 500; !signal.aborted; pause = Math.min(2 * pause, MAX_PAUSE)) {
      try {
        for await (const { models } of events(await request("/v1/narrows/status/stream", { signal }))) {
          pause = 500;
          this.#take(models);
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ApiError && error.status === 401) return this.onKey();
        show("state", error instanceof ApiError ? "no figures" : "out of reach");
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }

  #take(models) {
    const ids = models.map((model) => model.id);
    if (ids.join("\n") !== [...this.#models.keys()].join("\n")) {
      this.#models.clear();
      for (const id of ids) this.#models.set(id, null);
      this.onModels(ids);
    }
    for (const model of models) {
      this.#models.set(model.id, model);
      let samples = this.#samples.get(model.id) ?? [];
      const last = samples.at(-1);
      if (last?.steps > model.totals.steps) samples = []; // another server
      if (last?.steps !== model.totals.steps) samples.push(model.totals);
      const begin = model.totals.step_seconds - WINDOW_SECONDS;
      while (samples.length > 2 && samples[1].step_seconds <= begin) samples.shift();
      this.#samples.set(model.id, samples);
    }
    this.draw();
  }

  draw() {
    const model = this.#models.get(this.chosen());
    if (!model) return;
    const samples = this.#samples.get(model.id);
    const [first, last] = [samples[0], samples.at(-1)];
    const gained = Object.fromEntries(Object.keys(last).map((name) => [name, last[name] - first[name]]));
    const busy = model.num_running + model.num_waiting > 0;
    show("state", model.state === "ready" ? (busy ? "working" : "idle") : model.state);
    drawSpeed(gained, model);
    drawBytes(gained);
    drawDrafts(gained, model);
    const used = model.num_pages ? model.num_used_pages / model.num_pages : 0;
    const pages = model.num_pages ? `${number(model.num_used_pages)} of ${number(model.num_pages)}` : "–";
    show("pages", pages);
    meter("pages-bar", used, pages);
    show("queue", `${model.num_running} answering, ${model.num_waiting} waiting`);
    show("stack", model.stack ? `${model.num_threads} threads, ${model.stack}` : "");
  }
}

function drawSpeed(gained, { num_threads: threads, bandwidth_gigabytes: bandwidth }) {
  const seconds = gained.step_seconds;
  const tokens = gained.output_tokens;
  show("speed", tokens ? number(tokens / seconds) : "–");
  const read = gained.weight_bytes + gained.kv_bytes + gained.draft_bytes;
  let note = "";
  let share = 0;
  if (threads && !bandwidth) {
    note = `No bound: the memory's bandwidth is not known. Run: narrows bench bandwidth --threads ${threads}`;
  } else if (bandwidth && tokens) {
    share = read / seconds / (bandwidth * 1e9);
    const bound = (bandwidth * 1e9 * tokens) / read;
    note = `${percent(share)} of the ${number(bound)} tokens/s that ${number(bandwidth)} GB/s allow for these bytes`;
  }
  show("bound", note);
  meter("share", share, note || "nothing to show yet");
}

function drawBytes(gained) {
  const tokens = gained.output_tokens;
  const parts = { weight: gained.weight_bytes, kv: gained.kv_bytes, draft: gained.draft_bytes };
  const total = parts.weight + parts.kv + parts.draft;
  show("bytes", tokens ? bytes(total / tokens) : "–");
  for (const [name, value] of Object.entries(parts)) {
    show(`${name}-bytes`, tokens ? bytes(value / tokens) : "–");
    element(`${name}-part`).style.width = total ? `${(100 * value) / total}%` : 0;
  }
}

function drawDrafts(gained, { stack }) {
  const { drafted_tokens: drafted, accepted_tokens: kept, chosen_tokens: tokens, chosen_steps: steps } = gained;
  show("kept", drafted ? `${number(kept)} of ${number(drafted)} kept` : "–");
  let note = steps ? `${number(tokens / steps)} tokens per forward of the model` : "";
  if (stack && !stack.includes(" draft=")) note = "This model is served without guessing: --stack draft=ngram turns it on";
  show("drafts", note);
}

function meter(id, share, text) {
  const bar = element(id);
  bar.setAttribute("aria-valuenow", Math.round(Math.min(share, 1) * 100));
  bar.setAttribute("aria-valuetext", text);
  bar.firstElementChild.style.width = percent(Math.min(share, 1));
}
