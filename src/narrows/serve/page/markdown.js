// The little Markdown that models write, as elements that are made one by one: text never becomes markup.

const FENCE = /^ {0,3}```/;
const HEADING = /^(#{1,6}) +/;
const ITEM = /^ *(?:[-*+]|(\d{1,9})[.)]) +/;
const INLINE = /(`)[^`\n]+`|(\*\*)[^*\n]+\*\*|(\*)[^*\s][^*\n]*\*/g;
const TAGS = { "`": "code", "**": "strong", "*": "em" };

// `drafted` holds [start, end) of what was guessed ahead, in order; it is marked, whatever it is part of.
export function render(text, drafted) {
  const root = document.createDocumentFragment();
  let block = null; // the open paragraph or list
  let start = 0;
  while (start < text.length) {
    let end = lineEnd(text, start);
    const line = text.slice(start, end);
    let match;
    if (FENCE.test(line)) {
      const from = Math.min(end + 1, text.length);
      let close = from;
      while (close < text.length && !FENCE.test(text.slice(close, lineEnd(text, close)))) close = lineEnd(text, close) + 1;
      const code = add(add(root, "pre"), "code");
      code.parentNode.tabIndex = 0; // it may scroll
      plain(code, text, from, Math.min(close, text.length), drafted);
      end = lineEnd(text, close);
      block = null;
    } else if (!line.trim()) {
      block = null;
    } else if ((match = HEADING.exec(line))) {
      inline(add(root, `h${Math.min(6, match[1].length + 2)}`), text, start + match[0].length, end, drafted);
      block = null;
    } else if ((match = ITEM.exec(line))) {
      const tag = match[1] ? "OL" : "UL";
      if (block?.tagName !== tag) {
        block = add(root, tag);
        if (match[1]) block.start = Number(match[1]);
      }
      inline(add(block, "li"), text, start + match[0].length, end, drafted);
    } else {
      const into = block?.lastElementChild?.tagName === "LI" ? block.lastElementChild : (block ??= add(root, "p"));
      if (into.hasChildNodes()) into.append("\n");
      inline(into, text, start, end, drafted);
    }
    start = end + 1;
  }
  return root;
}

function lineEnd(text, start) {
  const end = text.indexOf("\n", start);
  return end < 0 ? text.length : end;
}

function add(parent, tag) {
  return parent.appendChild(document.createElement(tag));
}

function inline(parent, text, start, end, drafted) {
  let at = start;
  for (const match of text.slice(start, end).matchAll(INLINE)) {
    const mark = match[1] ?? match[2] ?? match[3];
    const from = start + match.index;
    const to = from + match[0].length;
    plain(parent, text, at, from, drafted);
    plain(add(parent, TAGS[mark]), text, from + mark.length, to - mark.length, drafted);
    at = to;
  }
  plain(parent, text, at, end, drafted);
}

function plain(parent, text, start, end, drafted) {
  let at = start;
  for (let i = firstEndingAfter(drafted, start); i < drafted.length && drafted[i][0] < end; i++) {
    const from = Math.max(start, drafted[i][0]);
    const to = Math.min(end, drafted[i][1]);
    if (from > at) parent.append(text.slice(at, from));
    const mark = add(parent, "mark");
    mark.className = "drafted";
    mark.textContent = text.slice(from, to);
    at = to;
  }
  if (end > at) parent.append(text.slice(at, end));
}

function firstEndingAfter(ranges, position) {
  let low = 0;
  let high = ranges.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ranges[middle][1] <= position) low = middle + 1;
    else high = middle;
  }
  return low;
}
