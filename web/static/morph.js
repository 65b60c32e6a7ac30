// Changes a tree of elements into another one in place, so that the focus, the selection, the scroll
// position and what the viewer has typed or opened remain.

const kept = { DETAILS: ["open"], INPUT: ["value", "checked"], SELECT: ["value"], OPTION: ["selected"] };

export function morphContent(from, to) {
  let at = from.firstChild;
  for (let next = to.firstChild; next; ) {
    const after = next.nextSibling;
    const match = find(at, next);
    if (match) {
      while (at !== match) at = remove(at);
      at = match.nextSibling;
      if (next.nodeType === Node.ELEMENT_NODE) morph(match, next);
      else if (match.data !== next.data) match.data = next.data;
    } else {
      from.insertBefore(next, at);
    }
    next = after;
  }
  while (at) at = remove(at);
}

function morph(from, to) {
  morphAttributes(from, to);
  if (from.nodeName !== "TEXTAREA") morphContent(from, to);
}

function remove(node) {
  const after = node.nextSibling;
  node.remove();
  return after;
}

// find returns the node that becomes next: the one with its id, or the first if its kind is the same.
function find(at, next) {
  if (next.id) {
    for (let node = at; node; node = node.nextSibling) if (node.id === next.id) return node;
    return null;
  }
  if (at && !at.id && at.nodeType === next.nodeType && at.nodeName === next.nodeName) return at;
  return null;
}

function morphAttributes(from, to) {
  const own = kept[from.nodeName] || [];
  for (const { name, value } of [...to.attributes]) {
    if (!own.includes(name) && from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    if (!own.includes(name) && !to.hasAttribute(name)) from.removeAttribute(name);
  }
}
