// Joins the page's controls to the conversation and to the live figures.

import { ApiError, key } from "./api.js";
import { Chat } from "./chat.js";
import { Figures } from "./figures.js";

const element = (id) => document.getElementById(id);
const [model, prompt, dialog] = ["model", "prompt", "key-dialog"].map(element);
const chat = new Chat(element("log"));
const figures = new Figures(() => model.value, offer, askForKey);

// --- models and figures ---

function offer(ids) {
  const chosen = model.value;
  model.replaceChildren(...ids.map((id) => new Option(id, id, false, id === chosen)));
}

model.addEventListener("change", () => figures.draw());
element("show-drafted").addEventListener("change", ({ target }) => {
  document.body.classList.toggle("plain", !target.checked);
});

// --- the conversation ---

function whole(id) {
  const { value, valueAsNumber } = element(id);
  return value === "" ? null : valueAsNumber;
}

function tell(message) {
  element("error").textContent = message;
  element("error").hidden = !message;
}

function working(yes) {
  element("send").hidden = yes;
  element("stop").hidden = !yes;
  element("announcement").textContent = yes ? "Answering" : "";
}

async function ask() {
  const question = prompt.value;
  const fields = ["temperature", "max-tokens"].map(element);
  const wrong = fields.find((field) => !field.checkValidity());
  if (wrong) {
    element("settings").open = true;
    wrong.reportValidity();
    return;
  }
  if (!question.trim() || chat.answering) return;
  const id = model.value;
  element("welcome")?.remove();
  tell("");
  prompt.value = "";
  working(true);
  let answer = "";
  try {
    answer = await chat.ask(question, {
      model: id,
      system: element("system").value.trim(),
      temperature: whole("temperature"),
      maxTokens: whole("max-tokens"),
      bandwidth: () => figures.bandwidth(id),
    });
  } catch (error) {
    prompt.value = question;
    if (error instanceof ApiError && error.status === 401) askForKey();
    else tell(error instanceof ApiError ? error.message : "The server is out of reach.");
  } finally {
    working(false);
    element("announcement").textContent = answer && `Answer: ${answer}`; // whole: read out once, not token by token
    prompt.focus();
  }
}

element("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    ask();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !dialog.open) chat.stop();
});
element("stop").addEventListener("click", () => chat.stop());
element("new-chat").addEventListener("click", () => {
  chat.clear();
  tell("");
  prompt.focus();
});

// --- the API key ---

function askForKey() {
  if (dialog.open) return;
  element("key-note").textContent = key.get()
    ? "The server does not know the key that was given."
    : "It stays in this tab until the tab is closed.";
  key.forget();
  element("forget-key").hidden = true;
  dialog.showModal();
}

element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(element("key").value.trim());
  element("key").value = "";
  element("forget-key").hidden = false;
  dialog.close();
  figures.listen();
});
element("forget-key").addEventListener("click", () => {
  key.forget();
  location.reload();
});
element("forget-key").hidden = !key.get();

// --- light and dark ---

const THEME = "narrows-theme";
const theme = element("theme");

function paint(scheme) {
  document.documentElement.style.colorScheme = scheme ?? "light dark";
  const dark = scheme ? scheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  theme.setAttribute("aria-pressed", dark);
}

theme.addEventListener("click", () => {
  const scheme = theme.getAttribute("aria-pressed") === "true" ? "light" : "dark";
  localStorage.setItem(THEME, scheme);
  paint(scheme);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paint(localStorage.getItem(THEME)));
paint(localStorage.getItem(THEME));

figures.listen();
prompt.focus();
