// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Images for the next message: dropped, pasted or chosen, shown small above the composer, sent as
// data URLs. Knows no conversation.
'use strict';

const Images = (() => {
  const KINDS = ['image/png', 'image/jpeg', 'image/webp'];
  let urls = [];                       // data URLs, in the order of their coming

  function read(file) {
    return new Promise((done, failed) => {
      const reader = new FileReader();
      reader.onload = () => done(reader.result);
      reader.onerror = () => failed(reader.error);
      reader.readAsDataURL(file);
    });
  }

  function picture(url, number) {
    const made = Markdown.element('img');
    made.src = url;
    made.alt = `Image ${number + 1}`;
    return made;
  }

  function show(box, changed) {
    box.replaceChildren(...urls.map((url, number) => {
      const remove = Markdown.element('button', picture(url, number));
      remove.type = 'button';
      remove.title = 'Leave this image out';
      remove.addEventListener('click', () => {
        urls.splice(number, 1);
        show(box, changed);
      });
      return remove;
    }));
    box.hidden = !urls.length;
    changed();
  }

  return {
    any: () => urls.length > 0,

    // Takes files; gives what to tell the user, '' when all were taken.
    async attach(files, box, changed) {
      const fit = [...files].filter((file) => KINDS.includes(file.type));
      try {
        urls.push(...await Promise.all(fit.map(read)));
      } catch (error) {
        return `The image could not be read: ${error.message}`;
      }
      show(box, changed);
      return fit.length < files.length ? 'Images are PNG, JPEG or WebP files.' : '';
    },

    // The content of a message with the images, and elements that show them; none are left.
    take(text, box, changed) {
      if (!urls.length) return {content: text, shown: []};
      const shown = urls.map(picture);
      const content = [...urls.map((url) => ({type: 'image_url', image_url: {url}})),
        ...(text.trim() ? [{type: 'text', text}] : [])];
      urls = [];
      show(box, changed);
      return {content, shown};
    },

    clear(box, changed) {
      urls = [];
      show(box, changed);
    },
  };
})();
