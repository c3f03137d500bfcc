// Requests to the server this page came from, with the API key of this tab if it asks for one.

const KEY = "narrows-key";

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

// What the server answered instead of what was asked; `status` is 0 for an error inside a stream.
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// A response that is well; with `body`, of a POST. Throws ApiError.
export async function request(path, { body, signal } = {}) {
  const headers = key.get() ? { Authorization: `Bearer ${key.get()}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  const init = { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal };
  const reply = await fetch(path, init);
  if (reply.ok) return reply;
  let message = `${reply.status} ${reply.statusText}`;
  try {
    message = (await reply.json()).error.message;
  } catch {} // a proxy's page, say
  throw new ApiError(reply.status, message);
}

// The data of server-sent events as they arrive. Throws ApiError for an event that tells of one.
export async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const line = block.split("\n").find((line) => line.startsWith("data: "));
        if (!line || line === "data: [DONE]") continue; // a comment that keeps the line open, or the end
        const data = JSON.parse(line.slice(6));
        if (data.error) throw new ApiError(0, data.error.message);
        yield data;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
