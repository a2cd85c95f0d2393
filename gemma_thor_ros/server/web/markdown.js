// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Markdown to elements. What the model writes only ever becomes text nodes: there is no innerHTML,
// and a link is made for http, https and mailto alone. Blocks that have not changed keep their
// elements, so that a growing answer costs its last block.
'use strict';

const Markdown = (() => {
  const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
  const HEADING = /^ {0,3}(#{1,6})\s+(.*?)(?:\s+#+)?\s*$/;
  const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
  const QUOTE = /^ {0,3}>/;
  const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/;
  const DIVIDER = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
  const MAX_DEPTH = 8;
  const MAX_INLINE = 8000;

  function element(tag, ...children) {
    const made = document.createElement(tag);
    made.append(...children);
    return made;
  }

  // Text -> [{kind, lines}], the lines of each block as they stand.
  function blocks(text) {
    const lines = text.split('\n');
    const found = [];
    for (let i = 0; i < lines.length;) {
      const line = lines[i];
      const start = i;
      const fence = line.match(FENCE);
      let kind = 'paragraph';
      if (!line.trim()) {
        i++;
        continue;
      }
      if (fence) {
        kind = 'code';
        const mark = fence[1];
        const end = (l) => l.trim().startsWith(mark) && !l.trim().slice(mark.length).trim();
        for (i++; i < lines.length && !end(lines[i]); i++);
        i++;
      } else if (HEADING.test(line)) {
        kind = 'heading';
        i++;
      } else if (RULE.test(line)) {
        kind = 'rule';
        i++;
      } else if (QUOTE.test(line)) {
        kind = 'quote';
        for (; i < lines.length && QUOTE.test(lines[i]); i++);
      } else if (ITEM.test(line)) {
        kind = 'list';
        const ordered = /\d/.test(line.match(ITEM)[2]);
        for (i++; i < lines.length; i++) {
          const item = lines[i].match(ITEM);
          if (item && (item[1].length > 1 || /\d/.test(item[2]) === ordered)) continue;
          if (/^\s{2,}\S/.test(lines[i])) continue;
          if (!lines[i].trim() && i + 1 < lines.length
              && (/^\s{2,}\S/.test(lines[i + 1]) || (ITEM.test(lines[i + 1])
                && /\d/.test(lines[i + 1].match(ITEM)[2]) === ordered))) continue;
          if (lines[i].trim() && !item && lines[i - 1].trim() && !special(lines[i])) continue;
          break;
        }
      } else if (line.includes('|') && i + 1 < lines.length && DIVIDER.test(lines[i + 1])
                 && lines[i + 1].includes('-')) {
        kind = 'table';
        for (i += 2; i < lines.length && lines[i].includes('|') && lines[i].trim(); i++);
      } else {
        for (i++; i < lines.length && lines[i].trim() && !special(lines[i]); i++);
      }
      found.push({kind, lines: lines.slice(start, i)});
    }
    return found;
  }

  function special(line) {
    return FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || RULE.test(line)
      || (ITEM.test(line) && /^\s*([-*+]|1[.)])\s/.test(line));
  }

  function block({kind, lines}, depth) {
    if (kind === 'code') return code(lines);
    if (kind === 'rule') return element('hr');
    if (kind === 'heading') {
      const [, marks, text] = lines[0].match(HEADING);
      return element(`h${marks.length}`, ...inline(text, 0));
    }
    if (kind === 'quote' && depth < MAX_DEPTH) {
      const inner = lines.map((line) => line.replace(/^ {0,3}> ?/, '')).join('\n');
      return element('blockquote', ...all(inner, depth + 1));
    }
    if (kind === 'list' && depth < MAX_DEPTH) return list(lines, depth);
    if (kind === 'table') return table(lines);
    return element('p', ...inline(lines.join('\n'), 0));
  }

  function all(text, depth) {
    return blocks(text).map((found) => block(found, depth));
  }

  function code(lines) {
    const [, mark, language] = lines[0].match(FENCE);
    const last = lines[lines.length - 1].trim();
    const closed = lines.length > 1 && last.startsWith(mark) && !last.slice(mark.length).trim();
    const text = lines.slice(1, closed ? -1 : undefined).join('\n');
    const copy = element('button', 'Copy');
    copy.type = 'button';
    copy.className = 'copy-code';
    copy.addEventListener('click', () => copyText(text, copy));
    const made = element('div', element('div', language || 'text', copy),
      element('pre', element('code', text)));
    made.className = 'code';
    return made;
  }

  function list(lines, depth) {
    const [, indent, marker] = lines[0].match(ITEM);
    const made = document.createElement(/\d/.test(marker) ? 'ol' : 'ul');
    if (made.tagName === 'OL' && parseInt(marker, 10) !== 1) made.start = parseInt(marker, 10);
    let item = null;
    let width = 0;
    const close = () => {
      if (!item) return;
      const inner = all(item.join('\n'), depth + 1);
      // A single paragraph stands in its item without a frame of its own.
      const tight = inner.length && inner[0].tagName === 'P' && !item.includes('');
      const children = tight ? [...inner[0].childNodes, ...inner.slice(1)] : inner;
      made.append(element('li', ...children));
    };
    for (const line of lines) {
      const found = line.match(ITEM);
      if (found && found[1].length <= indent.length + 1) {
        close();
        width = found[0].length;
        item = [line.slice(width)];
      } else {
        const lead = line.match(/^\s*/)[0].length;
        item.push(line.slice(Math.min(lead, Math.max(width, 2))));
      }
    }
    close();
    return made;
  }

  function table(lines) {
    const cells = (line) => line.trim().replace(/^\||\|$/g, '').split('|')
      .map((cell) => cell.trim());
    const row = (line, tag) => element('tr',
      ...cells(line).map((cell) => element(tag, ...inline(cell, 0))));
    return element('table', element('thead', row(lines[0], 'th')),
      element('tbody', ...lines.slice(2).map((line) => row(line, 'td'))));
  }

  const INLINE = new RegExp([
    '\\\\([\\\\`*_{}\\[\\]()#+.!~|<>-])',                      // 1 escaped character
    '(`+)([^`]+|[^`][\\s\\S]*?[^`])\\2(?!`)',                  // 2, 3 code
    '\\*\\*(?=\\S)([^*]+(?:\\*[^*]+\\*[^*]*)*)\\*\\*',         // 4 bold
    '__(?=\\S)([^_]+)__',                                      // 5 bold
    '\\*(?=[^\\s*])([^*\\n]+)\\*',                             // 6 italic
    '(?<![\\w])_(?=[^\\s_])([^_\\n]+)_(?![\\w])',              // 7 italic
    '~~(?=\\S)([^~]+)~~',                                      // 8 struck
    '\\[([^\\[\\]]+)\\]\\(([^()\\s]+)\\)',                     // 9, 10 link
    '(https?://[^\\s<>()\\[\\]"\']+[^\\s<>()\\[\\]"\'.,;:!?])', // 11 bare address
  ].join('|'), 'g');

  function inline(text, depth) {
    if (depth > MAX_DEPTH || text.length > MAX_INLINE) return [text];
    const out = [];
    let from = 0;
    for (const m of text.matchAll(INLINE)) {
      if (m.index > from) out.push(text.slice(from, m.index));
      from = m.index + m[0].length;
      const deeper = (part) => inline(part, depth + 1);
      if (m[1] !== undefined) out.push(m[1]);
      else if (m[3] !== undefined) out.push(element('code', m[3]));
      else if (m[4] !== undefined) out.push(element('strong', ...deeper(m[4])));
      else if (m[5] !== undefined) out.push(element('strong', ...deeper(m[5])));
      else if (m[6] !== undefined) out.push(element('em', ...deeper(m[6])));
      else if (m[7] !== undefined) out.push(element('em', ...deeper(m[7])));
      else if (m[8] !== undefined) out.push(element('del', ...deeper(m[8])));
      else if (m[9] !== undefined) out.push(link(m[10], deeper(m[9]), m[0]));
      else out.push(link(m[11], [m[11]], m[0]));
    }
    if (from < text.length) out.push(text.slice(from));
    return out;
  }

  function link(address, children, raw) {
    if (!/^(https?:\/\/|mailto:)/i.test(address)) return raw;
    const made = element('a', ...children);
    made.href = address;
    made.rel = 'noopener noreferrer';
    made.target = '_blank';
    return made;
  }

  // Make `target` show `text`, reusing the elements of blocks that are as they were.
  function show(target, text) {
    const old = target.markdownBlocks || [];
    const next = blocks(text).map((found) => ({source: found.lines.join('\n'), found}));
    let same = 0;
    while (same < next.length && same < old.length && next[same].source === old[same].source) {
      same++;
    }
    while (target.childNodes.length > same) target.lastChild.remove();
    for (const item of next.slice(same)) target.append(block(item.found, 0));
    target.markdownBlocks = next.map(({source}) => ({source}));
  }

  return {show, element};
})();

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {                           // no secure context: the old way
    const area = document.createElement('textarea');
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  const before = button.textContent;
  button.textContent = 'Copied';
  setTimeout(() => { button.textContent = before; }, 1200);
}
